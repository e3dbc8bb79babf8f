-- Invocations that only their sums are known of, per path, over the iterations that count.
SELECT path_id, sum(count)::BIGINT AS count, sum(total_ns)::BIGINT AS total_ns
FROM sums
WHERE used AND NOT own
GROUP BY path_id
HAVING sum(count) > 0
ORDER BY path_id;
