-- Maximal runs of adjacent samples below the threshold, longest first, with the leaf node that runs
-- longest during each.
WITH flagged AS (
    SELECT track, start_ns, end_ns, level, level < getvariable('low_level') AS low,
        level < getvariable('low_level') IS DISTINCT FROM lag(level < getvariable('low_level')) OVER w
            OR start_ns > lag(end_ns) OVER w + getvariable('sample_ns') AS flip
    FROM measured
    SEMI JOIN (FROM track WHERE metric = 'activity') USING (track)
    WINDOW w AS (PARTITION BY track ORDER BY start_ns)
),
island AS (
    SELECT *, sum(flip::INTEGER) OVER (PARTITION BY track ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS run
    FROM flagged
),
low AS (
    SELECT track.device, run, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        sum(level::HUGEINT * (end_ns - start_ns))::DOUBLE / sum(end_ns - start_ns)::DOUBLE / 1e4 AS activity
    FROM island
    JOIN track USING (track)
    WHERE low
    GROUP BY track.device, run
    HAVING max(end_ns) - min(start_ns) >= getvariable('min_ns')
    ORDER BY max(end_ns) - min(start_ns) DESC, track.device, min(start_ns)
    LIMIT getvariable('most')
),
running AS (
    SELECT low.device, low.run, s.path_id,
        sum(least(s.end_ns, low.end_ns) - greatest(s.start_ns, low.start_ns)) AS overlap_ns
    FROM low
    JOIN process_device d ON d.device = low.device
    JOIN span s ON s.process_id = d.process_id AND s.start_ns < low.end_ns AND s.end_ns > low.start_ns
    JOIN target USING (path_id)
    GROUP BY ALL
),
named AS (
    SELECT device, run, arg_max(path_id, (overlap_ns, -path_id)) AS path_id, max(overlap_ns)::BIGINT AS overlap_ns
    FROM running
    GROUP BY device, run
),
waiting AS (
    SELECT low.device, low.run, w.node,
        sum(least(w.end_ns, low.end_ns) - greatest(w.start_ns, low.start_ns)) AS wait_ns
    FROM low
    JOIN process_device d ON d.device = low.device
    JOIN wait w ON w.process_id = d.process_id AND w.start_ns < low.end_ns AND w.end_ns > low.start_ns
    GROUP BY ALL
),
called AS (
    SELECT device, run, arg_max(node, (wait_ns, node)) AS call, max(wait_ns)::BIGINT AS call_ns
    FROM waiting
    GROUP BY device, run
)
SELECT low.device, low.start_ns, low.end_ns, low.activity, named.path_id, named.overlap_ns, called.call, called.call_ns
FROM low
LEFT JOIN named USING (device, run)
LEFT JOIN called USING (device, run)
ORDER BY low.end_ns - low.start_ns DESC, low.device, low.start_ns;
