-- Which invocation was the first to stall?
-- A stall lasts more than three times the median of its node; stalls of leaf nodes in order of start, the first on top. Write another factor than 3 to be more or less strict.
WITH typical AS (
    SELECT path, floor(median(duration_ns))::BIGINT AS median_ns FROM invocations WHERE leaf GROUP BY path
)
SELECT i.iteration, i.path, i.span_id, i.start_ns, i.duration_ns, t.median_ns,
    round(i.duration_ns / t.median_ns, 2) AS times, i.warm_up
FROM invocations i
JOIN typical t USING (path)
WHERE i.leaf AND i.duration_ns > 3 * t.median_ns
ORDER BY i.seq;
