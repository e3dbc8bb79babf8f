-- Paths whose invocations gave a device work.
SELECT DISTINCT p.path_id
FROM read_parquet(getvariable('spans')) s
JOIN path p ON p.path = s.path::VARCHAR
WHERE s.device_end_ns IS NOT NULL
ORDER BY p.path_id;
