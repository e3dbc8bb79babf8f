-- Candidates for the root, the one with the largest share of the recorded time first.
SELECT path::VARCHAR AS path, sum(end_ns - start_ns)::BIGINT AS total_ns
FROM read_parquet(getvariable('spans'))
WHERE kind = 'iteration' AND status = 'ok'
GROUP BY path
ORDER BY total_ns DESC, path;
