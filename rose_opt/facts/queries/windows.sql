-- Per leaf node over the iterations that count: how long, and how active the device was meanwhile (or how
-- much of its memory's bandwidth was in use).
-- The integral of activity up to a moment is a prefix sum plus a part of one sample.
WITH leaf AS (
    SELECT s.path_id, s.start_ns, s.end_ns, m.metric, m.track
    FROM span s
    JOIN target USING (path_id)
    JOIN process_device d USING (process_id)
    JOIN track m USING (device)
    WHERE s.used
),
opened AS (
    SELECT l.*, coalesce(a.busy + a.level * (least(l.start_ns, a.end_ns) - a.start_ns), 0) AS busy_0,
        coalesce(a.covered + least(l.start_ns, a.end_ns) - a.start_ns, 0) AS covered_0
    FROM leaf l
    ASOF LEFT JOIN measured a ON a.track = l.track AND a.start_ns <= l.start_ns
),
closed AS (
    SELECT o.metric, o.path_id, o.end_ns - o.start_ns AS duration_ns,
        coalesce(a.busy + a.level * (least(o.end_ns, a.end_ns) - a.start_ns), 0) - o.busy_0 AS busy,
        coalesce(a.covered + least(o.end_ns, a.end_ns) - a.start_ns, 0) - o.covered_0 AS covered
    FROM opened o
    ASOF LEFT JOIN measured a ON a.track = o.track AND a.start_ns <= o.end_ns
)
SELECT metric, path_id, count(*) AS count, sum(duration_ns)::BIGINT AS duration_ns, sum(covered)::BIGINT AS covered_ns,
    (sum(busy)::DOUBLE / nullif(sum(covered), 0)::DOUBLE) / 1e4 AS activity
FROM closed
GROUP BY metric, path_id
ORDER BY metric, path_id;
