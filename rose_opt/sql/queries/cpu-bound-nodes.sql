-- Which leaf nodes keep CPU cores busy?
-- CPU time is that of the whole process during the node, so work that runs beside it counts too. One core and more means that the node computes on the host or spins; far less than one means that it waits.
SELECT path, round(cores_used, 3) AS cores_used, threads, cpu_ns, mean_ns, per_iteration_ns
FROM nodes
WHERE leaf AND cores_used IS NOT NULL
ORDER BY nodes.cores_used DESC, path;
