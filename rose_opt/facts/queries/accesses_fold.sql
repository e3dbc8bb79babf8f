-- An iteration touches what the iterations inside it touch: fold loops at one depth outwards.
CREATE OR REPLACE TEMP TABLE touch AS
WITH piece AS (
    FROM touch
    UNION ALL
    SELECT c.parent, t.state_id, t.first_seq, t.first_mode, t.first_path, t.write_seq, t.write_path, t.write_mode
    FROM touch t
    JOIN cell c USING (cell_id)
    WHERE len(c.chain) = getvariable('depth')
)
SELECT
    cell_id,
    state_id,
    min(first_seq) AS first_seq,
    arg_min(first_mode, first_seq) AS first_mode,
    arg_min(first_path, first_seq) AS first_path,
    max(write_seq) AS write_seq,
    arg_max(write_path, write_seq) AS write_path,
    arg_max(write_mode, write_seq) AS write_mode
FROM piece
GROUP BY cell_id, state_id;
