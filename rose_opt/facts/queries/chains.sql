-- Cells of loops around which getvariable('depth') loops lie.
INSERT INTO cell
SELECT c.cell_id, c.loop_id, c.idx, c.loop_path, outer_cell.cell_id, list_append(outer_cell.chain, c.cell_id)
FROM loop_cell c
JOIN place p ON p.path_id = c.loop_path
JOIN home h ON h.span_id = c.loop_id
JOIN cell outer_cell ON outer_cell.loop_id = h.loop_id AND outer_cell.idx = h.idx
WHERE c.loop_path <> 0 AND p.depth = getvariable('depth');
