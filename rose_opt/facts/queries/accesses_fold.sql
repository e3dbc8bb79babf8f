-- An iteration touches what the iterations inside it touch: hand loops at one depth outwards.
INSERT INTO touch
SELECT
    c.parent,
    t.state_id,
    min(t.first_seq),
    arg_min(t.first_mode, t.first_seq),
    arg_min(t.first_path, t.first_seq),
    max(t.write_seq),
    arg_max(t.write_path, t.write_seq),
    arg_max(t.write_mode, t.write_seq)
FROM touch t
JOIN cell c USING (cell_id)
WHERE len(c.chain) = getvariable('depth')
GROUP BY c.parent, t.state_id;
