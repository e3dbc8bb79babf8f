-- How long was the device less than half active in each iteration?
-- Time in samples below an activity of 0.5. Dips shorter than resolution_ns are averaged out and do not show.
SELECT iteration, iteration_id, warm_up, duration_ns, low_ns, round(low_ns / nullif(covered_ns, 0), 4) AS share,
    covered_ns, source, estimate, resolution_ns
FROM iterations
ORDER BY start_ns, iteration_id;
