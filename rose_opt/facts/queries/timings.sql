-- Per path, over the iterations that are not warm-up. Self time is what children do not cover. Of
-- invocations that were not recorded in full, count and duration are known (summed).
WITH child AS (
    SELECT parent_id, sum(covered_ns) AS covered_ns
    FROM (
        SELECT parent_id, end_ns - start_ns AS covered_ns FROM span WHERE used
        UNION ALL
        SELECT s.loop_id, s.total_ns
        FROM sums s
        JOIN place p USING (path_id)
        JOIN span l ON l.span_id = s.loop_id AND l.path_id = p.parent_path_id
        WHERE s.used AND NOT s.own
    )
    GROUP BY parent_id
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
),
inside AS (
    SELECT s.loop_id, p.parent_path_id AS path_id, sum(s.total_ns) AS covered_ns
    FROM sums s
    JOIN place p USING (path_id)
    WHERE s.used AND NOT s.own
    GROUP BY ALL
),
summed AS (
    SELECT s.path_id, sum(s.count)::BIGINT AS count, sum(s.total_ns)::BIGINT AS total_ns,
        sum(greatest(s.total_ns - coalesce(i.covered_ns, 0), 0))::BIGINT AS self_ns
    FROM sums s
    LEFT JOIN inside i USING (loop_id, path_id)
    WHERE s.used AND NOT s.own
    GROUP BY s.path_id
),
recorded AS (
    SELECT
        path_id,
        count(*) AS count,
        sum(duration_ns)::BIGINT AS total_ns,
        floor(median(duration_ns))::BIGINT AS median_ns,
        sum(self_ns)::BIGINT AS self_ns,
        (sum(cpu_ns) // count(cpu_ns))::BIGINT AS cpu_ns,
        (sum(cpu_ns)::DOUBLE / nullif(sum(duration_ns) FILTER (cpu_ns IS NOT NULL), 0)::DOUBLE) AS cores_used,
        max(threads) AS threads
    FROM invocation
    GROUP BY path_id
)
SELECT
    r.path_id,
    r.count + coalesce(s.count, 0) AS count,
    r.total_ns + coalesce(s.total_ns, 0) AS total_ns,
    ((r.total_ns + coalesce(s.total_ns, 0)) // (r.count + coalesce(s.count, 0)))::BIGINT AS mean_ns,
    r.median_ns,
    r.self_ns + coalesce(s.self_ns, 0) AS self_ns,
    r.cpu_ns,
    r.cores_used,
    r.threads,
    coalesce(s.count, 0) AS summed
FROM recorded r
LEFT JOIN summed s USING (path_id)
ORDER BY r.path_id;
