-- During which nodes does the device leave the most unused?
-- Windows by idle time in one iteration, with the ones that the optimizer refuses and why. Values marked as estimates are derived, or mixed with those of neighbouring nodes.
SELECT path, idle_ns, total_ns, round(activity, 3) AS activity, rank, refused, source, estimate, resolution_ns
FROM windows
WHERE idle_ns IS NOT NULL
ORDER BY idle_ns DESC, path;
