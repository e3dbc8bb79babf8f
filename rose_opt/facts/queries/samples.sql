-- measured: activity from the chosen source and use of the memory's bandwidth, one device after another,
-- without overlaps. Values are kept in ten-thousandths so that sums are exact; busy and covered are sums
-- over all earlier samples. A track is one level of one device: integers join faster than names.
CREATE TEMP TABLE measured AS
WITH chosen AS (
    SELECT CASE WHEN source = 'dram' THEN 'dram' ELSE 'activity' END AS metric, device::VARCHAR AS device,
        start_ns, end_ns, round(activity * 1e4)::BIGINT AS level
    FROM read_parquet(getvariable('activity'))
    WHERE source IN (getvariable('source'), 'dram') AND end_ns > start_ns AND start_ns > 0
),
clipped AS (
    SELECT metric, device, start_ns,
        least(end_ns, coalesce(lead(start_ns) OVER (PARTITION BY metric, device ORDER BY start_ns, end_ns), end_ns))
            AS end_ns,
        level
    FROM chosen
)
SELECT metric, device, track, start_ns, end_ns, level,
    coalesce(sum(level * (end_ns - start_ns)) OVER before, 0)::BIGINT AS busy,
    coalesce(sum(end_ns - start_ns) OVER before, 0)::BIGINT AS covered
FROM clipped
JOIN (
    SELECT metric, device, row_number() OVER (ORDER BY metric, device)::INTEGER AS track
    FROM (SELECT DISTINCT metric, device FROM chosen)
) USING (metric, device)
WHERE end_ns > start_ns
WINDOW before AS (
    PARTITION BY track ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
);

CREATE TEMP VIEW sample AS
SELECT device, start_ns, end_ns, level, busy, covered FROM measured WHERE metric = 'activity';
