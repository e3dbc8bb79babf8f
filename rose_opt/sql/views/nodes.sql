-- One row per node, over the iterations that are not warm-up.
--
-- path | | the node
-- node | | its name with its component
-- kind | | exec, loop or iteration
-- leaf | | whether it calls no other node
-- parent | | path of the node around it
-- key | | its definition, module:qualname
-- opaque | | whether nothing is known of its accesses, so that it is never moved
-- reads | | states that it reads
-- updates | | states that it updates
-- refreshes | | states that it refreshes
-- invocations | | how many
-- calls | | invocations per iteration
-- total_ns | ns | sum of their durations
-- per_iteration_ns | ns | total_ns per iteration
-- share | fraction | self_ns as a part of the iterations' time; above one in sum where work overlaps
-- self_ns | ns | part of total_ns that no node inside it covers
-- mean_ns | ns | mean duration
-- median_ns | ns | median duration
-- p95_ns | ns | 95th percentile of the durations
-- max_ns | ns | longest duration
-- cpu_ns | ns | mean CPU time of the whole process during an invocation, null if unknown
-- cores_used | cores | CPU time by duration, null if unknown
-- threads | | most intra-op threads it ran with
CREATE TABLE nodes AS
WITH spread AS (
    SELECT path, quantile_disc(duration_ns, 0.95) AS p95_ns, max(duration_ns) AS max_ns
    FROM (
        SELECT path, duration_ns FROM invocations WHERE NOT warm_up
        UNION ALL
        SELECT path, duration_ns FROM iterations WHERE NOT warm_up
    )
    GROUP BY path
)
SELECT
    path, node, kind, leaf, parent, key, opaque, reads, updates, refreshes, invocations,
    invocations / getvariable('iterations') AS calls, total_ns,
    total_ns // getvariable('iterations') AS per_iteration_ns,
    self_ns / getvariable('iterations_ns') AS share,
    self_ns, mean_ns, median_ns, p95_ns, max_ns, cpu_ns, cores_used, threads
FROM node_timing
LEFT JOIN spread USING (path);
