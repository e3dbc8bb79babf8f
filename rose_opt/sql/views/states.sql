-- One row per access of a span to a state.
--
-- span_id | | the span
-- path | | its node
-- process | | role of the process that ran it
-- iteration | | index of the RL iteration around it
-- split_group | | branch of a split, -1 for the whole batch
-- start_ns | Unix ns | start of the span
-- state | | absolute name, component.state
-- access | | read, update or refresh
-- version | writes | version found: writes before this access since recording began
-- version_after | writes | version left behind
CREATE VIEW states AS
SELECT
    span_id, path, process, iteration, split_group, start_ns,
    s.state AS state, s.access AS access, s.version AS version,
    s.version + (s.access <> 'read')::BIGINT AS version_after
FROM (
    SELECT span_id, path::VARCHAR AS path, process::VARCHAR AS process, iteration[1] AS iteration,
        "group" AS split_group, start_ns, unnest(states) AS s
    FROM {spans}
);
