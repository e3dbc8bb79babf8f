-- Per path, over the iterations that are not warm-up. Self time is what children do not cover.
WITH child AS (
    SELECT parent_id, sum(end_ns - start_ns) AS covered_ns FROM span WHERE used GROUP BY parent_id
),
invocation AS (
    SELECT s.path_id, s.end_ns - s.start_ns AS duration_ns, s.cpu_ns, s.threads,
        greatest(s.end_ns - s.start_ns - coalesce(c.covered_ns, 0), 0) AS self_ns
    FROM (
        SELECT path_id, span_id, start_ns, end_ns, cpu_ns, threads FROM span WHERE used
        UNION ALL
        SELECT 0, span_id, start_ns, end_ns, raw.cpu_ns, raw.threads
        FROM root JOIN raw USING (span_id, start_ns, end_ns) WHERE used
    ) s
    LEFT JOIN child c ON c.parent_id = s.span_id
)
SELECT
    path_id,
    count(*) AS count,
    sum(duration_ns)::BIGINT AS total_ns,
    (sum(duration_ns) // count(*))::BIGINT AS mean_ns,
    floor(median(duration_ns))::BIGINT AS median_ns,
    sum(self_ns)::BIGINT AS self_ns,
    (sum(cpu_ns) // count(cpu_ns))::BIGINT AS cpu_ns,
    (sum(cpu_ns)::DOUBLE / nullif(sum(duration_ns) FILTER (cpu_ns IS NOT NULL), 0)::DOUBLE) AS cores_used,
    max(threads) AS threads
FROM invocation
GROUP BY path_id
ORDER BY path_id;
