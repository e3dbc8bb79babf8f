-- Where does the time of an iteration go?
-- Time of each node without the nodes inside it; for the iteration itself, a loop or a composite that is glue. The shares of a program that overlaps nothing add up to one.
SELECT path, kind, self_ns // (SELECT count(*) FROM iterations WHERE NOT warm_up) AS self_per_iteration_ns,
    round(share, 4) AS share, invocations, mean_ns, median_ns, p95_ns
FROM nodes
ORDER BY self_ns DESC, path;
