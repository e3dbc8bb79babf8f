-- One row per step of the chain of invocations that determined when an iteration ended.
--
-- The chain ends with the leaf invocation that ended last and goes back along waits until the iteration's start.
-- Each step counts from the moment that the step before let it go to the moment that it let the next one go:
-- gap_ns before it started, on_path_ns while it ran. Their sum is the iteration's duration up to the last end.
--
-- iteration | | index of the RL iteration
-- iteration_id | | span_id of that iteration
-- warm_up | | whether that is a warm-up
-- position | | place in the chain, from 0
-- span_id | | the invocation
-- path | | its node
-- reason | | why it followed the step before, as in waits
-- state | | the state, null for other reasons
-- gap_ns | ns | from the moment the step before let it go to its start: glue, hand-over and idling
-- on_path_ns | ns | part of its run that the iteration waited for
-- duration_ns | ns | its whole duration
-- start_ns | Unix ns | its start
-- until_ns | Unix ns | when it let the next step go; its end for the last
CREATE TABLE critical_path AS
WITH step AS (
    SELECT w.*, i.start_ns, i.end_ns, i.duration_ns, c.position,
        coalesce(lead(w.available_ns) OVER (PARTITION BY w.iteration_id ORDER BY c.position), i.end_ns) AS until_ns
    FROM chain c
    JOIN waits w USING (span_id)
    JOIN invocations i USING (span_id)
)
SELECT iteration, iteration_id, warm_up, position, span_id, path, reason, state,
    least(greatest(start_ns, available_ns), until_ns) - available_ns AS gap_ns,
    until_ns - least(greatest(start_ns, available_ns), until_ns) AS on_path_ns,
    duration_ns, start_ns, until_ns
FROM step;
