-- Storages that several invocations handed out as their own result, in overlapping byte ranges, and who
-- took them: one row per set of nodes that handed the same ones out.
WITH handed AS (
    SELECT span_id, o.ref AS ref, min(o."offset") AS first, max(o."offset" + o.nbytes) AS last
    FROM (
        SELECT span_id, unnest([x FOR x IN outputs IF x.producer = span_id AND x.ref <> 0 AND x.nbytes > 0]) AS o
        FROM read_parquet(getvariable('spans'))
        WHERE len(outputs) > 0
    )
    GROUP BY span_id, ref
),
ranged AS (
    SELECT h.ref, h.first, h.last, s.path_id, s.seq,
        max(h.last) OVER (PARTITION BY h.ref ORDER BY h.first, s.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached,
        min(h.first) OVER (PARTITION BY h.ref ORDER BY h.first, s.seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS follows
    FROM handed h
    JOIN span s USING (span_id)
),
reused AS (
    SELECT ref, min(first) AS first, max(last) AS last, list_sort(list(DISTINCT path_id)) AS producers
    FROM ranged
    WHERE first < reached OR follows < last
    GROUP BY ref
),
taken AS (
    SELECT DISTINCT s.path_id, t.i.ref AS ref, t.i."offset" AS first, t.i."offset" + t.i.nbytes AS last
    FROM (
        SELECT span_id, unnest([x FOR x IN inputs IF x.ref <> 0]) AS i
        FROM read_parquet(getvariable('spans'))
        WHERE len(inputs) > 0
    ) t
    JOIN span s USING (span_id)
    SEMI JOIN reused r ON r.ref = t.i.ref
)
SELECT r.producers, list_sort(list(DISTINCT t.path_id) FILTER (t.path_id IS NOT NULL)) AS consumers
FROM reused r
LEFT JOIN taken t ON t.ref = r.ref AND t.first < r.last AND r.first < t.last
GROUP BY r.producers
ORDER BY r.producers;
