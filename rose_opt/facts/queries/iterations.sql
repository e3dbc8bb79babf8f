-- Iterations that count, with the part of each that no leaf node covers (glue, run in sequence).
WITH leaf AS (
    SELECT s.root_cell, s.start_ns, s.end_ns,
        max(s.end_ns) OVER (
            PARTITION BY s.root_cell ORDER BY s.start_ns, s.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_ns
    FROM span s
    JOIN place p USING (path_id)
    JOIN path USING (path_id)
    WHERE s.used AND path.kind = 'exec' AND NOT EXISTS (FROM place c WHERE c.parent_path_id = s.path_id)
),
covered AS (
    SELECT root_cell, sum(leaf_ns) AS leaf_ns
    FROM (
        SELECT root_cell, greatest(end_ns - greatest(start_ns, coalesce(before_ns, start_ns)), 0) AS leaf_ns
        FROM leaf
        UNION ALL
        SELECT s.root_cell, s.total_ns
        FROM sums s
        JOIN path USING (path_id)
        WHERE path.kind = 'exec' AND NOT EXISTS (FROM place c WHERE c.parent_path_id = s.path_id)
    )
    GROUP BY root_cell
)
SELECT root.idx, root.process_id, root.end_ns - root.start_ns AS duration_ns,
    greatest(root.end_ns - root.start_ns - coalesce(covered.leaf_ns, 0), 0)::BIGINT AS glue_ns
FROM root
LEFT JOIN cell ON cell.loop_path = 0 AND cell.loop_id = root.process_id AND cell.idx = root.idx
LEFT JOIN covered ON covered.root_cell = cell.cell_id
WHERE root.used
ORDER BY root.process_id, root.idx;
