-- Devices that the results of each process live on.
SELECT process_id, device, count(*) AS n
FROM (
    SELECT span_id, unnest(list_distinct([o.device FOR o IN outputs])) AS device
    FROM read_parquet(getvariable('spans'))
    WHERE len(outputs) > 0
)
JOIN span USING (span_id)
GROUP BY ALL
ORDER BY process_id, n DESC, device;
