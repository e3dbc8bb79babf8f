-- Rows of profilers in the trace, and whether kernels are among them.
SELECT count(*) AS found, count(*) FILTER (kind = 'kernel') AS kernels
FROM read_parquet(getvariable('spans'))
WHERE kind IN ('kernel', 'sync');
