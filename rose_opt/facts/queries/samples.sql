-- sample: the chosen source, one device after another, without overlaps. Activity is kept in
-- ten-thousandths so that sums are exact; busy and covered are sums over all earlier samples.
CREATE TEMP TABLE sample AS
WITH chosen AS (
    SELECT device::VARCHAR AS device, start_ns, end_ns, round(activity * 1e4)::BIGINT AS level
    FROM read_parquet(getvariable('activity'))
    WHERE source = getvariable('source') AND end_ns > start_ns AND start_ns > 0
),
clipped AS (
    SELECT device, start_ns,
        least(end_ns, coalesce(lead(start_ns) OVER (PARTITION BY device ORDER BY start_ns, end_ns), end_ns)) AS end_ns,
        level
    FROM chosen
)
SELECT device, start_ns, end_ns, level,
    coalesce(sum(level * (end_ns - start_ns)) OVER before, 0)::BIGINT AS busy,
    coalesce(sum(end_ns - start_ns) OVER before, 0)::BIGINT AS covered
FROM clipped
WHERE end_ns > start_ns
WINDOW before AS (PARTITION BY device ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING);
