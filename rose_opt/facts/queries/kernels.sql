-- kernel: executions of kernels with the blocks of their grid; one without a grid fills its device.
CREATE TEMP TABLE kernel AS
WITH found AS (
    SELECT parent_id, start_ns, end_ns, map_extract_value(attributes, 'device') AS device,
        map_extract_value(attributes, 'grid') AS grid
    FROM read_parquet(getvariable('spans'))
    WHERE kind = 'kernel'
)
SELECT f.parent_id, f.device, f.start_ns, f.end_ns,
    coalesce(list_product([axis::DOUBLE FOR axis IN string_split(f.grid, 'x')])::BIGINT, d.sms) AS blocks
FROM found f
JOIN sms d USING (device);

-- segment: stretches between starts and ends of kernels, from the first one on. Filled are the
-- SMs for which running kernels have a block, at most all, in ten-thousandths. Busy and filled are sums
-- over all earlier segments, so that the integral up to any moment is one lookup.
CREATE TEMP TABLE segment AS
WITH edge AS (
    SELECT device, start_ns AS at_ns, 1 AS kernels, blocks FROM kernel
    UNION ALL
    SELECT device, end_ns, -1, -blocks FROM kernel
),
moment AS (
    SELECT device, at_ns, sum(kernels) AS kernels, sum(blocks) AS blocks FROM edge GROUP BY device, at_ns
),
running AS (
    SELECT device, at_ns AS start_ns,
        coalesce(lead(at_ns) OVER w, at_ns) - at_ns AS length_ns,
        (sum(kernels) OVER w > 0)::BIGINT AS busy_level,
        (sum(blocks) OVER w)::BIGINT AS block_level
    FROM moment
    WINDOW w AS (PARTITION BY device ORDER BY at_ns)
),
levels AS (
    SELECT r.*, (least(block_level / d.sms, 1) * 10000)::BIGINT AS filled_level
    FROM running r
    JOIN sms d USING (device)
)
SELECT *,
    coalesce(sum(busy_level * length_ns) OVER earlier, 0)::BIGINT AS busy,
    coalesce(sum(filled_level * length_ns) OVER earlier, 0)::HUGEINT AS filled
FROM levels
WINDOW earlier AS (PARTITION BY device ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING);
