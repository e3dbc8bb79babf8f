-- One row per invocation of a node or loop inside a finished iteration of the main root.
--
-- span_id | | identity, as in spans
-- parent_id | | span_id of the caller
-- path | | the node
-- node | | its name with its component
-- kind | | exec or loop
-- leaf | | whether the node calls no other node
-- iteration | | index of the RL iteration around it
-- iteration_id | | span_id of that iteration
-- warm_up | | whether that iteration is the first of its process and others follow
-- rank | | number of the process that runs the iteration
-- process | | role of the process that ran it
-- process_id | | number of that process
-- worker | | worker that ran it, null in a native run
-- thread | | native thread id
-- split_group | | branch of a split, -1 for the whole batch
-- row_start | rows | first row of the batch served, null for the whole batch
-- row_stop | rows | row after the last one served
-- seq | | position in the order of starts
-- start_ns | Unix ns | start on the host
-- host_end_ns | Unix ns | return on the host
-- end_ns | Unix ns | the later of the host's return and the device's completion
-- duration_ns | ns | from start_ns to end_ns
-- self_ns | ns | part of the duration that no invocation inside it covers
-- cpu_ns | ns | CPU time of the whole process meanwhile, null if unknown
-- wait_ns | ns | time between being ready and starting, in a planned run
-- threads | | intra-op threads it ran with, null if unknown
-- activity | fraction | mean activity meanwhile; null if shorter than resolution_ns or less than half covered by samples
-- source | | source of the activity, null without samples
-- estimate | | whether the activity is derived, not measured
-- resolution_ns | ns | shortest time that one value of the source describes
CREATE TABLE invocations AS
WITH inside AS (
    SELECT parent_id AS span_id, sum(end_ns - start_ns)::BIGINT AS inside_ns FROM span GROUP BY parent_id
),
opened AS (
    SELECT s.span_id, d.device, s.start_ns, s.end_ns,
        coalesce(a.busy + a.level * (least(s.start_ns, a.end_ns) - a.start_ns), 0) AS busy_0,
        coalesce(a.covered + least(s.start_ns, a.end_ns) - a.start_ns, 0) AS covered_0
    FROM span s
    JOIN process_device d USING (process_id)
    ASOF LEFT JOIN level a ON a.device = d.device AND a.start_ns <= s.start_ns
),
active AS (
    SELECT o.span_id,
        coalesce(a.busy + a.level * (least(o.end_ns, a.end_ns) - a.start_ns), 0) - o.busy_0 AS busy,
        coalesce(a.covered + least(o.end_ns, a.end_ns) - a.start_ns, 0) - o.covered_0 AS covered
    FROM opened o
    ASOF LEFT JOIN level a ON a.device = o.device AND a.start_ns <= o.end_ns
)
SELECT
    s.span_id, s.parent_id, n.path, n.node, n.kind,
    n.kind = 'exec' AND NOT EXISTS (FROM place below WHERE below.parent_path_id = s.path_id) AS leaf,
    recorded.iteration, r.span_id AS iteration_id, NOT s.used AS warm_up, r.process_id AS rank,
    recorded.process, s.process_id, recorded.worker, recorded.thread, recorded.split_group,
    recorded.row_start, recorded.row_stop, s.seq,
    s.start_ns, recorded.end_ns AS host_end_ns, s.end_ns, s.end_ns - s.start_ns AS duration_ns,
    greatest(s.end_ns - s.start_ns - coalesce(i.inside_ns, 0), 0) AS self_ns,
    s.cpu_ns, recorded.wait_ns, s.threads,
    CASE WHEN s.end_ns - s.start_ns >= getvariable('resolution_ns')
        AND active.covered >= 0.5 * (s.end_ns - s.start_ns) AND active.covered > 0
        THEN active.busy::DOUBLE / active.covered::DOUBLE / 1e4 END AS activity,
    getvariable('source') AS source, getvariable('estimate') AS estimate,
    getvariable('resolution_ns') AS resolution_ns
FROM span s
JOIN path n USING (path_id)
JOIN spans recorded USING (span_id)
JOIN cell c ON c.cell_id = s.root_cell
JOIN root r ON r.process_id = c.loop_id AND r.idx = c.idx
LEFT JOIN inside i USING (span_id)
LEFT JOIN active USING (span_id);
