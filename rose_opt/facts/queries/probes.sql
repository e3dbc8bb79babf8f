-- Medians over repetitions (and over the groups of one split) of every measured variant.
SELECT path::VARCHAR AS path, variant::VARCHAR AS variant, groups::INTEGER AS groups, threads::INTEGER AS threads,
    count(*) AS count,
    floor(median(duration_ns))::BIGINT AS duration_ns,
    floor(median(cpu_ns))::BIGINT AS cpu_ns,
    bool_and(identical) AS identical
FROM read_parquet(getvariable('probes'))
GROUP BY ALL
ORDER BY path, variant, groups, threads;
