-- One row per invocation of a leaf node: which invocation of the same iteration it followed, and why.
--
-- Of the leaf invocations that it depends on, and the one before it on its thread, it follows the one that
-- ended last. Dependencies whose device work ended after it returned do not count: it did not wait for them.
--
-- span_id | | the invocation
-- path | | its node
-- iteration | | index of the RL iteration
-- iteration_id | | span_id of that iteration
-- warm_up | | whether that is a warm-up
-- waits_for_id | | span_id of the invocation that it followed, null for the first
-- waits_for | | node of that invocation
-- reason | | data, raw, war or waw as in dependencies; thread: nothing but the order on its thread; start: nothing before it
-- state | | the state, null for other reasons
-- available_ns | Unix ns | when that invocation let it go: its end, for thread its return on the host; start of the iteration for the first
-- gap_ns | ns | from available_ns to its start: glue, hand-over and idling
-- ready_ns | Unix ns | end of the last invocation that it depends on; start of the iteration if there is none
-- late_ns | ns | from ready_ns to its start: how much earlier it could have started
CREATE TABLE waits AS
WITH leaf AS (
    SELECT *, lag(span_id) OVER (PARTITION BY iteration_id, process_id, thread ORDER BY seq) AS before_id
    FROM invocations
    WHERE leaf
),
candidate AS (
    SELECT c.span_id, p.span_id AS waits_for_id, p.path AS waits_for, p.seq, 'thread' AS reason,
        NULL::VARCHAR AS state, p.host_end_ns AS available_ns
    FROM leaf c
    JOIN leaf p ON p.span_id = c.before_id
    UNION ALL
    SELECT c.span_id, p.span_id, p.path, p.seq, d.kind, d.state, p.end_ns
    FROM dependencies d
    JOIN leaf c USING (span_id)
    JOIN leaf p ON p.span_id = d.depends_on
    WHERE p.iteration_id = c.iteration_id AND p.seq < c.seq AND p.end_ns <= c.host_end_ns
),
last AS (
    SELECT span_id,
        arg_max(
            {'waits_for_id': waits_for_id, 'waits_for': waits_for, 'reason': reason, 'state': state,
                'available_ns': available_ns},
            (available_ns, -list_position(['data', 'raw', 'waw', 'war', 'thread'], reason), seq, coalesce(state, ''))
        ) AS w,
        max(available_ns) FILTER (reason <> 'thread') AS ready_ns
    FROM candidate
    GROUP BY span_id
)
SELECT
    i.span_id, i.path, i.iteration, i.iteration_id, i.warm_up, w.waits_for_id, w.waits_for,
    coalesce(w.reason, 'start') AS reason, w.state, coalesce(w.available_ns, r.start_ns) AS available_ns,
    greatest(i.start_ns - coalesce(w.available_ns, r.start_ns), 0) AS gap_ns,
    coalesce(l.ready_ns, r.start_ns) AS ready_ns,
    greatest(i.start_ns - coalesce(l.ready_ns, r.start_ns), 0) AS late_ns
FROM leaf i
JOIN root r ON r.span_id = i.iteration_id
LEFT JOIN last l ON l.span_id = i.span_id;
