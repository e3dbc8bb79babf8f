-- Lower quartiles over repetitions (and over the groups of one split) of every measured variant: what else the
-- machine did meanwhile only adds.
SELECT path::VARCHAR AS path, variant::VARCHAR AS variant, groups::INTEGER AS groups, threads::INTEGER AS threads,
    count(*) AS count,
    floor(quantile_cont(duration_ns, 0.25))::BIGINT AS duration_ns,
    floor(quantile_cont(cpu_ns, 0.25))::BIGINT AS cpu_ns,
    bool_and(identical) AS identical
FROM read_parquet(getvariable('probes'))
GROUP BY ALL
ORDER BY path, variant, groups, threads;
