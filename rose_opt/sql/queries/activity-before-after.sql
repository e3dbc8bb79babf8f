-- What did a change do to iteration time and device activity?
-- One row per trace, over the iterations that are not warm-up. Activities of different sources do not compare.
-- traces: before, after
WITH both_traces AS (
    SELECT 1 AS place, 'before' AS trace, * FROM before.iterations
    UNION ALL
    SELECT 2, 'after', * FROM after.iterations
)
SELECT trace, count(*) AS iterations, floor(median(duration_ns))::BIGINT AS median_ns,
    round(sum(activity * covered_ns) / sum(covered_ns) FILTER (activity IS NOT NULL), 3) AS activity,
    round(sum(low_ns) / nullif(sum(covered_ns), 0), 3) AS below_half,
    any_value(source) AS source, bool_or(estimate) AS estimate, any_value(resolution_ns) AS resolution_ns
FROM both_traces
WHERE NOT warm_up
GROUP BY place, trace
ORDER BY place;
