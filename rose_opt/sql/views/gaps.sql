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
SELECT g.device, g.start_ns, g.end_ns, g.end_ns - g.start_ns AS duration_ns, g.activity, path.path, g.overlap_ns,
    getvariable('source') AS source, getvariable('estimate') AS estimate,
    getvariable('resolution_ns') AS resolution_ns
FROM ({low_samples}) g
LEFT JOIN path USING (path_id);
