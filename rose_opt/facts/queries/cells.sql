-- loop_cell: one row per iteration of one loop invocation that called anything.
CREATE TEMP TABLE loop_cell AS
SELECT
    (row_number() OVER (ORDER BY first_seq, depth) - 1)::INTEGER AS cell_id,
    loop_id,
    idx,
    loop_path,
    first_seq
FROM (
    SELECT h.loop_id, h.idx, p.loop_path_id AS loop_path, p.depth, min(r.seq) AS first_seq
    FROM home h
    JOIN raw r USING (span_id)
    JOIN place p USING (path_id)
    GROUP BY ALL
);

-- cell: the same with the chain of cells around it, outermost first, this one last.
CREATE TEMP TABLE cell (
    cell_id INTEGER, loop_id UBIGINT, idx INTEGER, loop_path INTEGER, parent INTEGER, chain INTEGER[]
);
INSERT INTO cell
SELECT cell_id, loop_id, idx, loop_path, NULL, [cell_id] FROM loop_cell WHERE loop_path = 0;
