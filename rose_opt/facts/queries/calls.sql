-- Calls in one run of the parent's body, per path: least, most, and bodies that called it at all.
SELECT path_id, min(calls)::BIGINT AS low, max(calls)::BIGINT AS high, count(*) AS called
FROM (SELECT path_id, parent_id, cell_id, count(*) AS calls FROM span GROUP BY ALL)
GROUP BY path_id
ORDER BY path_id;
