-- One row per recorded span, as recorded: invocations of nodes and loops, iterations, kernels and foreign spans.
--
-- span_id | | identity of the span
-- parent_id | | span_id of the caller, 0 without one
-- kind | | exec, loop, iteration, foreign or kernel
-- node | | name of the node with its component
-- path | | place of the node in the execution hierarchy
-- key | | definition of the node, module:qualname
-- process | | role of the process that ran it
-- pid | | its process id
-- thread | | native thread id
-- stream | | CUDA stream, null without one
-- worker | | worker that ran it, null in a native run
-- iteration | | index of the RL iteration around it, null outside of one
-- indices | | indices of all enclosing loops, outermost first
-- ordinal | | number among the calls of this node by the same parent
-- count | items | iterations of a loop, null otherwise
-- split_group | | branch of a split, -1 for the whole batch
-- split_groups | | branches of that split
-- row_start | rows | first row of the batch served, null for the whole batch
-- row_stop | rows | row after the last one served
-- start_ns | Unix ns | start on the host
-- end_ns | Unix ns | return on the host
-- device_end_ns | Unix ns | completion on the device, null without one
-- duration_ns | ns | from start to the later of the two ends
-- cpu_ns | ns | CPU time of the whole process meanwhile, null if unknown
-- wait_ns | ns | time between being ready and starting, in a planned run
-- threads | | intra-op threads it ran with, null if unknown
-- status | | ok or error
-- error | | type of the exception, null if none
-- declaration | | declared accesses, as JSON
-- attributes | | further attributes, a map
-- run | | id of the run
CREATE VIEW spans AS
SELECT
    span_id,
    parent_id,
    kind::VARCHAR AS kind,
    node::VARCHAR AS node,
    path::VARCHAR AS path,
    key::VARCHAR AS key,
    process::VARCHAR AS process,
    pid,
    thread,
    stream,
    worker::VARCHAR AS worker,
    iteration[1] AS iteration,
    iteration AS indices,
    ordinal,
    count,
    "group" AS split_group,
    groups AS split_groups,
    row_start,
    row_stop,
    start_ns,
    end_ns,
    device_end_ns,
    greatest(end_ns, coalesce(device_end_ns, end_ns)) - start_ns AS duration_ns,
    cpu_ns,
    wait_ns,
    threads,
    status::VARCHAR AS status,
    error::VARCHAR AS error,
    declaration::VARCHAR AS declaration,
    attributes,
    run::VARCHAR AS run
FROM {spans};
