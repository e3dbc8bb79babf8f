-- Threads that ran the wanted nodes; one alone overlaps nothing.
SELECT count(*)::INTEGER AS lanes
FROM (
    SELECT DISTINCT process, pid, thread
    FROM read_parquet(getvariable('spans')) s
    JOIN wanted w ON w.path = s.path::VARCHAR
    WHERE s.kind = 'exec'
);
