-- Per loop and state that some iteration writes: whether an iteration may inherit the value from an
-- earlier one, and the first recorded pair that does.
WITH merged AS (
    SELECT
        cell_id, state_id,
        min(first_seq) AS first_seq,
        arg_min(first_mode, first_seq) AS first_mode,
        arg_min(first_path, first_seq) AS first_path,
        max(write_seq) AS write_seq,
        arg_max(write_path, write_seq) AS write_path,
        arg_max(write_mode, write_seq) AS write_mode
    FROM touch
    GROUP BY cell_id, state_id
),
step AS (
    SELECT
        c.loop_path, c.idx, t.*,
        t.first_mode <> 'refresh' AS inherits,
        max(t.write_seq) OVER before AS before_seq
    FROM merged t
    JOIN cell c USING (cell_id)
    WINDOW before AS (
        PARTITION BY c.loop_id, c.loop_path, t.state_id ORDER BY c.idx
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
loop_state AS (
    SELECT
        loop_path, state_id, bool_or(inherits) AS inherited, bool_or(write_seq IS NOT NULL) AS written,
        min(first_seq) FILTER (inherits) AS inherits_seq,
        min(first_seq) FILTER (inherits AND before_seq IS NOT NULL) AS reader_seq,
        min(write_seq) AS any_write_seq
    FROM step
    GROUP BY loop_path, state_id
)
SELECT
    l.loop_path, l.state_id, l.inherited,
    coalesce(l.reader_seq, l.inherits_seq) AS reader_seq, r.first_path AS reader_path,
    r.first_mode AS reader_mode, r.idx AS reader_idx,
    coalesce(r.before_seq, l.any_write_seq) AS writer_seq, w.write_path AS writer_path,
    w.write_mode AS writer_mode, w.idx AS writer_idx,
    r.before_seq IS NOT NULL AS recorded
FROM loop_state l
LEFT JOIN step r
    ON r.loop_path = l.loop_path AND r.state_id = l.state_id AND r.first_seq = coalesce(l.reader_seq, l.inherits_seq)
LEFT JOIN step w
    ON w.loop_path = l.loop_path AND w.state_id = l.state_id AND w.write_seq = coalesce(r.before_seq, l.any_write_seq)
WHERE l.written
ORDER BY l.loop_path, l.inherited DESC, reader_seq, l.state_id;
