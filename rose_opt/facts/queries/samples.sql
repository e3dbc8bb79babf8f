-- sample: the chosen source, one device after another, without overlaps. Activity is kept in
-- millionths so that sums are exact; busy and covered are sums over all earlier samples.
CREATE TEMP TABLE sample AS
WITH chosen AS (
    SELECT device::VARCHAR AS device, start_ns, end_ns, round(activity * 1e6)::BIGINT AS ppm
    FROM read_parquet(getvariable('activity'))
    WHERE source = getvariable('source') AND end_ns > start_ns AND start_ns > 0
),
clipped AS (
    SELECT device, start_ns,
        least(end_ns, coalesce(lead(start_ns) OVER (PARTITION BY device ORDER BY start_ns, end_ns), end_ns)) AS end_ns,
        ppm
    FROM chosen
)
SELECT device, start_ns, end_ns, ppm,
    coalesce(sum(ppm::HUGEINT * (end_ns - start_ns)) OVER before, 0) AS busy,
    coalesce(sum(end_ns - start_ns) OVER before, 0) AS covered
FROM clipped
WHERE end_ns > start_ns
WINDOW before AS (PARTITION BY device ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING);
