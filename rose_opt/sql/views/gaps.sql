-- One row per run of adjacent samples below an activity of 0.5 that lasts at least resolution_ns, whatever ran.
--
-- device | | device of the samples
-- start_ns | Unix ns | start of the first sample
-- end_ns | Unix ns | end of the last sample
-- duration_ns | ns | from start to end
-- activity | fraction | mean activity in it
-- path | | leaf node that ran longest meanwhile, null if none did
-- overlap_ns | ns | how long that node ran meanwhile
-- source | | source of the activity
-- estimate | | whether the activity is derived, not measured
-- resolution_ns | ns | shortest time that one value of the source describes
CREATE TABLE gaps AS
WITH flagged AS (
    SELECT *, low IS DISTINCT FROM lag(low) OVER earlier
        OR start_ns > lag(end_ns) OVER earlier + getvariable('sample_ns') AS flip
    FROM level
    WINDOW earlier AS (PARTITION BY device ORDER BY start_ns)
),
island AS (
    SELECT *, sum(flip::INTEGER) OVER (PARTITION BY device ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS run
    FROM flagged
),
gap AS (
    SELECT device, run, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        sum(level::HUGEINT * (end_ns - start_ns))::DOUBLE / sum(end_ns - start_ns)::DOUBLE / 1e4 AS activity
    FROM island
    WHERE low
    GROUP BY device, run
    HAVING max(end_ns) - min(start_ns) >= getvariable('resolution_ns')
),
running AS (
    SELECT g.device, g.run, i.path, sum(least(i.end_ns, g.end_ns) - greatest(i.start_ns, g.start_ns))::BIGINT AS overlap_ns
    FROM gap g
    JOIN invocations i ON i.start_ns < g.end_ns AND i.end_ns > g.start_ns
    JOIN process_device d ON d.process_id = i.process_id AND d.device = g.device
    WHERE i.leaf
    GROUP BY g.device, g.run, i.path
),
longest AS (
    SELECT device, run, arg_min(path, (-overlap_ns, path)) AS path, max(overlap_ns) AS overlap_ns
    FROM running
    GROUP BY device, run
)
SELECT g.device, g.start_ns, g.end_ns, g.end_ns - g.start_ns AS duration_ns, g.activity, l.path,
    coalesce(l.overlap_ns, 0) AS overlap_ns, getvariable('source') AS source, getvariable('estimate') AS estimate,
    getvariable('resolution_ns') AS resolution_ns
FROM gap g
LEFT JOIN longest l USING (device, run);
