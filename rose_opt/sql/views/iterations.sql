-- One row per finished iteration of the main root.
--
-- iteration_id | | span_id of the iteration
-- path | | the root
-- iteration | | its index as recorded
-- rank | | number of the process that ran it
-- process | | role of that process
-- warm_up | | whether it is the first of its process and others follow
-- start_ns | Unix ns | start
-- end_ns | Unix ns | end
-- duration_ns | ns | from start to end
-- glue_ns | ns | part that no leaf node covers, null for a warm-up
-- covered_ns | ns | part that activity samples cover
-- low_ns | ns | time in samples below an activity of 0.5
-- activity | fraction | mean over the covered part; null if shorter than resolution_ns
-- source | | source of the activity, null without samples
-- estimate | | whether the activity is derived, not measured
-- resolution_ns | ns | shortest time that one value of the source describes
CREATE TABLE iterations AS
WITH moment AS (
    SELECT span_id, device, at_ns FROM (
        SELECT span_id, process_id, start_ns AS at_ns FROM root
        UNION ALL
        SELECT span_id, process_id, end_ns FROM root
    ) JOIN process_device USING (process_id)
),
summed AS (
    SELECT m.span_id, m.at_ns,
        coalesce(a.covered + least(m.at_ns, a.end_ns) - a.start_ns, 0) AS covered,
        coalesce(a.busy + a.level * (least(m.at_ns, a.end_ns) - a.start_ns), 0) AS busy,
        coalesce(a.low_ns + CASE WHEN a.low THEN least(m.at_ns, a.end_ns) - a.start_ns ELSE 0 END, 0) AS low
    FROM moment m
    ASOF LEFT JOIN level a ON a.device = m.device AND a.start_ns <= m.at_ns
),
during AS (
    SELECT span_id, max(covered) - min(covered) AS covered_ns, max(busy) - min(busy) AS busy,
        max(low) - min(low) AS low_ns
    FROM summed
    GROUP BY span_id
)
SELECT
    r.span_id AS iteration_id, s.path, s.iteration, r.process_id AS rank, s.process, NOT r.used AS warm_up,
    r.start_ns, r.end_ns, r.end_ns - r.start_ns AS duration_ns, g.glue_ns,
    coalesce(d.covered_ns, 0)::BIGINT AS covered_ns, coalesce(d.low_ns, 0)::BIGINT AS low_ns,
    CASE WHEN d.covered_ns > 0 AND r.end_ns - r.start_ns >= getvariable('resolution_ns')
        THEN d.busy::DOUBLE / d.covered_ns::DOUBLE / 1e4 END AS activity,
    getvariable('source') AS source, getvariable('estimate') AS estimate,
    getvariable('resolution_ns') AS resolution_ns
FROM root r
JOIN spans s USING (span_id)
LEFT JOIN glue g ON g.process_id = r.process_id AND g.idx = r.idx
LEFT JOIN during d USING (span_id);
