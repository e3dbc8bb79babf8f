-- Which node starts when which other node ends, and how much time is lost by that?
-- late_ns is how much earlier the invocations could have started by their dependencies alone; with reason thread, only the order on the thread held them back. gap_ns is glue and hand-over between the two.
SELECT path, waits_for, reason, state, count(*) AS invocations, sum(late_ns)::BIGINT AS late_ns, sum(gap_ns)::BIGINT AS gap_ns
FROM waits
WHERE NOT warm_up AND waits_for IS NOT NULL
GROUP BY path, waits_for, reason, state
ORDER BY late_ns DESC, path, waits_for, reason, state;
