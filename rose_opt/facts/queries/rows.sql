-- First axis of the tensor results of nodes whose results carry rows, whole-batch invocations only.
SELECT path_id, min(low) AS low, max(high) AS high
FROM (
    SELECT span_id, list_min([o.shape[1] FOR o IN outputs IF len(o.shape) > 0]) AS low,
        list_max([o.shape[1] FOR o IN outputs IF len(o.shape) > 0]) AS high
    FROM read_parquet(getvariable('spans'))
    WHERE len(outputs) > 0 AND path::VARCHAR IN (SELECT path FROM carrier)
)
JOIN span USING (span_id)
WHERE low IS NOT NULL AND whole
GROUP BY path_id
ORDER BY path_id;
