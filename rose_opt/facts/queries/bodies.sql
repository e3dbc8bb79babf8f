-- Runs of each path's body that are recorded: calls, or iterations of a loop.
SELECT path_id, sum(runs)::BIGINT AS bodies FROM span GROUP BY path_id
UNION ALL
SELECT 0, count(*) FROM root;
