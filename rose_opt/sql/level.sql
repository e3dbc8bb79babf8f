-- level: samples of the chosen source without overlaps; activity in ten-thousandths so that sums are exact.
-- busy, covered and low_ns are sums over all earlier samples of the device, so that the integral up to any
-- moment is one lookup.
CREATE TEMP TABLE level AS
WITH clipped AS (
    SELECT device, start_ns,
        least(end_ns, coalesce(lead(start_ns) OVER (PARTITION BY device ORDER BY start_ns, end_ns), end_ns)) AS end_ns,
        round(activity * 1e4)::BIGINT AS level
    FROM activity
    WHERE chosen
)
SELECT device, start_ns, end_ns, level, level < 5000 AS low,
    coalesce(sum(level * (end_ns - start_ns)) OVER before, 0)::BIGINT AS busy,
    coalesce(sum(end_ns - start_ns) OVER before, 0)::BIGINT AS covered,
    coalesce(sum(CASE WHEN level < 5000 THEN end_ns - start_ns ELSE 0 END) OVER before, 0)::BIGINT AS low_ns
FROM clipped
WHERE end_ns > start_ns
WINDOW before AS (PARTITION BY device ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING);
