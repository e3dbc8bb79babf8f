-- Finished invocations of the wanted nodes, in iterations that are not warm-up, in the order they started.
WITH root AS (
    SELECT start_ns, end_ns
    FROM read_parquet(getvariable('spans'))
    WHERE kind = 'iteration' AND status = 'ok' AND path::VARCHAR = getvariable('wanted_root')
    QUALIFY row_number() OVER (PARTITION BY pid ORDER BY start_ns) > 1 OR count(*) OVER (PARTITION BY pid) = 1
)
SELECT s.path::VARCHAR AS path, s.start_ns, greatest(s.end_ns, coalesce(s.device_end_ns, s.end_ns)) AS end_ns,
    s.groups::INTEGER AS groups, s.threads::INTEGER AS threads,
    coalesce(ends_with(s.worker::VARCHAR, ']'), false) AS sharded
FROM read_parquet(getvariable('spans')) s
JOIN wanted w ON w.path = s.path::VARCHAR
WHERE s.kind = 'exec' AND s.status = 'ok' AND s.end_ns > s.start_ns
    AND EXISTS (FROM root r WHERE s.start_ns >= r.start_ns AND s.start_ns < r.end_ns)
ORDER BY s.start_ns, s.span_id
LIMIT getvariable('most');
