-- path: one row per node path below the root, in program order of its first invocation.
CREATE TEMP TABLE path AS
SELECT
    (row_number() OVER (ORDER BY min(start_ns), length(path), path) - 1)::INTEGER AS path_id,
    path::VARCHAR AS path,
    min(node::VARCHAR) AS node,
    min(kind::VARCHAR) AS kind,
    min(key::VARCHAR) AS key,
    min(fingerprint::VARCHAR) AS fingerprint,
    min(declaration::VARCHAR) AS declaration,
    count(DISTINCT kind) = 1 AND count(DISTINCT key) <= 1 AND count(DISTINCT fingerprint) <= 1
        AND count(DISTINCT declaration) <= 1 AS uniform,
    bool_and(coalesce(map_extract_value(attributes, 'rewritable') <> 'false', true)) AS rewritable,
    max(map_extract_value(attributes, 'generators')) AS generators,
    min(count) AS count_low,
    max(count) AS count_high,
    list_sort(list(DISTINCT structure::VARCHAR) FILTER (structure IS NOT NULL AND row_start IS NULL))
        AS structures
FROM read_parquet(getvariable('spans'))
WHERE kind IN ('exec', 'loop', 'iteration') AND (path = getvariable('root') OR starts_with(path, getvariable('root') || '/'))
GROUP BY path;

FROM path ORDER BY path_id;
