-- Per leaf node over the iterations that count: what it launched, how busy and how full its device was
-- meanwhile, and the calls in which its host waited.
WITH leaf AS (
    SELECT s.path_id, s.span_id, s.start_ns, s.end_ns, d.device
    FROM span s
    JOIN target USING (path_id)
    JOIN process_device d USING (process_id)
    WHERE s.used
),
launched AS (
    SELECT path_id, count(*) AS kernels, sum(k.end_ns - k.start_ns) AS kernel_ns
    FROM leaf l
    JOIN kernel k ON k.parent_id = l.span_id
    GROUP BY path_id
),
waited AS (
    SELECT path_id, sum(calls) AS sync_calls, sum(ns) AS sync_ns, arg_max(node, (ns, node)) AS sync_name
    FROM (
        SELECT l.path_id, w.node, count(*) AS calls, sum(w.end_ns - w.start_ns) AS ns
        FROM leaf l
        JOIN wait w ON w.parent_id = l.span_id
        GROUP BY l.path_id, w.node
    )
    GROUP BY path_id
),
opened AS (
    SELECT l.*,
        coalesce(s.busy + s.busy_level * least(l.start_ns - s.start_ns, s.length_ns), 0) AS busy_0,
        coalesce(s.filled + s.filled_level * least(l.start_ns - s.start_ns, s.length_ns), 0) AS filled_0
    FROM leaf l
    ASOF LEFT JOIN segment s ON s.device = l.device AND s.start_ns <= l.start_ns
),
closed AS (
    SELECT o.path_id, o.device, o.end_ns - o.start_ns AS duration_ns,
        coalesce(s.busy + s.busy_level * least(o.end_ns - s.start_ns, s.length_ns), 0) - busy_0 AS busy_ns,
        coalesce(s.filled + s.filled_level * least(o.end_ns - s.start_ns, s.length_ns), 0) - filled_0 AS filled
    FROM opened o
    ASOF LEFT JOIN segment s ON s.device = o.device AND s.start_ns <= o.end_ns
),
running AS (
    SELECT path_id, sum(busy_ns)::DOUBLE / sum(duration_ns)::DOUBLE AS busy,
        sum(filled)::DOUBLE / sum(duration_ns)::DOUBLE / 1e4 AS filled,
        min(sms.sms) AS sms
    FROM closed
    LEFT JOIN sms USING (device)
    GROUP BY path_id
    HAVING sum(duration_ns) > 0
)
SELECT r.*, coalesce(l.kernels, 0)::BIGINT AS kernels, coalesce(l.kernel_ns, 0)::BIGINT AS kernel_ns,
    coalesce(w.sync_calls, 0)::BIGINT AS sync_calls, coalesce(w.sync_ns, 0)::BIGINT AS sync_ns,
    coalesce(w.sync_name, '') AS sync_name
FROM running r
LEFT JOIN launched l USING (path_id)
LEFT JOIN waited w USING (path_id)
ORDER BY r.path_id;
