-- When was the device idle the longest, whatever ran?
-- Runs of samples below an activity of 0.5, the longest first, with the leaf node that ran most of the time meanwhile; look there first in a timeline.
SELECT device, start_ns - (SELECT min(start_ns) FROM spans) AS after_ns, duration_ns, round(activity, 3) AS activity,
    path, overlap_ns, source, estimate, resolution_ns
FROM gaps
ORDER BY duration_ns DESC, device, start_ns;
