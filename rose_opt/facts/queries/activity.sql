-- Sources that recorded activity, with what they cover and how fine they are.
SELECT source::VARCHAR AS source, device::VARCHAR AS device, bool_or(estimate) AS estimate, count(*) AS samples,
    floor(median(end_ns - start_ns))::BIGINT AS sample_ns,
    min(start_ns) AS start_ns, max(end_ns) AS end_ns
FROM read_parquet(getvariable('activity'))
WHERE end_ns > start_ns AND start_ns > 0 AND source <> 'dram'
GROUP BY ALL
ORDER BY source, device;
