-- track: one level (activity from the chosen source, or use of the memory's bandwidth) of one device.
CREATE TEMP TABLE track AS
SELECT row_number() OVER (ORDER BY metric, device)::INTEGER AS track, metric, device, source
FROM (
    SELECT DISTINCT CASE WHEN source = 'dram' THEN 'dram' ELSE 'activity' END AS metric, device::VARCHAR AS device,
        source::VARCHAR AS source
    FROM read_parquet(getvariable('activity'))
    WHERE source IN (getvariable('source'), 'dram')
);

-- measured: samples of all tracks, one after another, without overlaps. Values are kept in ten-thousandths
-- so that sums are exact; busy and covered are sums over all earlier samples of the track.
CREATE TEMP TABLE measured AS
WITH chosen AS (
    SELECT t.track, s.start_ns, s.end_ns, round(s.activity * 1e4)::INTEGER AS level
    FROM read_parquet(getvariable('activity')) s
    JOIN track t ON t.source = s.source AND t.device = s.device
    WHERE s.end_ns > s.start_ns AND s.start_ns > 0
),
clipped AS (
    SELECT track, start_ns, level,
        least(end_ns, coalesce(lead(start_ns) OVER (PARTITION BY track ORDER BY start_ns, end_ns), end_ns)) - start_ns
            AS length_ns
    FROM chosen
)
SELECT track, start_ns, start_ns + length_ns AS end_ns, level::BIGINT AS level,
    coalesce(sum(level * length_ns) OVER before, 0)::BIGINT AS busy,
    coalesce(sum(length_ns) OVER before, 0)::BIGINT AS covered
FROM clipped
WHERE length_ns > 0
WINDOW before AS (PARTITION BY track ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING);

CREATE TEMP VIEW sample AS
SELECT device, start_ns, end_ns, level, busy, covered
FROM measured
JOIN track USING (track)
WHERE metric = 'activity';
