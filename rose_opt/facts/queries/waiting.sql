-- For nodes whose process computes little: which other node runs meanwhile. A leaf node contains no
-- other, so whatever runs during it runs in another thread or process.
WITH pair AS (
    SELECT v.span_id, v.path_id, w.path_id AS other,
        least(v.end_ns - v.start_ns, sum(least(v.end_ns, w.end_ns) - greatest(v.start_ns, w.start_ns))) AS overlap_ns
    FROM span v
    JOIN stalled USING (path_id)
    JOIN span w ON w.start_ns < v.end_ns AND w.end_ns > v.start_ns
    JOIN target t ON t.path_id = w.path_id
    WHERE v.used AND NOT EXISTS (FROM stalled o WHERE o.path_id = w.path_id)
    GROUP BY v.span_id, v.path_id, v.start_ns, v.end_ns, w.path_id
)
SELECT path_id, other, sum(overlap_ns)::BIGINT AS overlap_ns
FROM pair
GROUP BY path_id, other
ORDER BY path_id, overlap_ns DESC, other;
