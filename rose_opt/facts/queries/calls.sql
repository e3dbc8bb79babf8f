-- Calls in one run of the parent's body, per path: least, most, and bodies that called it at all. Where
-- bodies were left out, their sum must be that of so many bodies; otherwise most is above least.
WITH body AS (
    SELECT path_id, min(calls)::BIGINT AS low, max(calls)::BIGINT AS high, count(*) AS called
    FROM (SELECT path_id, parent_id, cell_id, count(*) AS calls FROM span GROUP BY ALL)
    GROUP BY path_id
),
left_out AS (
    SELECT path_id, sum(count)::BIGINT AS count, sum(runs)::BIGINT AS runs FROM sums GROUP BY path_id
)
SELECT b.path_id, b.low, b.called,
    b.high + (coalesce(own.count, 0) <> b.low * coalesce(outer_node.runs, 0))::INTEGER AS high
FROM body b
JOIN place p USING (path_id)
LEFT JOIN left_out own USING (path_id)
LEFT JOIN left_out outer_node ON outer_node.path_id = p.parent_path_id
ORDER BY b.path_id;
