-- One row per activity sample. A value describes no less than resolution_ns, however often it was read.
--
-- source | | pm-sampling, kernels, gpm, nvml-utilisation or cpu; dram for the memory's bandwidth
-- meaning | | what the values of this source are
-- device | | device sampled
-- start_ns | Unix ns | start of the sample
-- end_ns | Unix ns | end of the sample
-- duration_ns | ns | its length
-- activity | fraction | mean over the sample
-- estimate | | whether the value is derived, not measured
-- resolution_ns | ns | shortest time that one value of this source describes
-- chosen | | whether the source is the best one recorded, which all other views use
CREATE VIEW activity AS
WITH per_source AS (
    SELECT source, max(sample_ns) AS sample_ns
    FROM (
        SELECT source::VARCHAR AS source, floor(median(end_ns - start_ns))::BIGINT AS sample_ns
        FROM {activity}
        WHERE end_ns > start_ns AND start_ns > 0
        GROUP BY source, device
    )
    GROUP BY source
),
known AS (
    SELECT source, greatest(p.sample_ns, coalesce(s.floor_ns, 0)) AS resolution_ns,
        coalesce(s.meaning, CASE source WHEN 'dram' THEN 'share of the memory''s bandwidth in use' ELSE source END)
            AS meaning,
        source <> 'dram' AND row_number() OVER (ORDER BY source = 'dram', s.rank NULLS LAST, source) = 1 AS chosen
    FROM per_source p
    LEFT JOIN ({sources}) s USING (source)
)
SELECT
    source, k.meaning, a.device::VARCHAR AS device, a.start_ns, a.end_ns, a.end_ns - a.start_ns AS duration_ns,
    a.activity, a.estimate, k.resolution_ns, k.chosen
FROM (SELECT * REPLACE (source::VARCHAR AS source) FROM {activity}) a
JOIN known k USING (source)
WHERE a.end_ns > a.start_ns AND a.start_ns > 0;
