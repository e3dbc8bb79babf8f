-- Which nodes became faster or slower?
-- Time in one iteration in both traces, the largest change first; null where a node is in one trace only.
-- traces: before, after
SELECT path, b.per_iteration_ns AS before_ns, a.per_iteration_ns AS after_ns,
    coalesce(a.per_iteration_ns, 0) - coalesce(b.per_iteration_ns, 0) AS change_ns,
    round(a.per_iteration_ns / nullif(b.per_iteration_ns, 0), 3) AS ratio
FROM before.nodes b
FULL JOIN after.nodes a USING (path)
ORDER BY abs(change_ns) DESC, path;
