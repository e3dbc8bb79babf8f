-- Which nodes determine how long each iteration takes?
-- Time on the critical path by node, the largest first in each iteration. Making a node faster that is not here changes nothing.
SELECT c.iteration, c.iteration_id, c.path, count(*) AS steps, sum(c.on_path_ns)::BIGINT AS on_path_ns,
    sum(c.gap_ns)::BIGINT AS gap_ns, round(sum(c.on_path_ns) / any_value(i.duration_ns), 4) AS share
FROM critical_path c
JOIN iterations i USING (iteration_id)
WHERE NOT i.warm_up
GROUP BY c.iteration, c.iteration_id, c.path
ORDER BY any_value(i.start_ns), c.iteration_id, on_path_ns DESC, c.path;
