-- Storages that several invocations filled, in overlapping byte ranges, and who took them: one row per
-- set of nodes that fill the same ones.
CREATE TEMP TABLE taken AS
SELECT s.path_id, t.span_id, t.end_ns, t.i.ref AS ref, t.i."offset" AS first, t.i."offset" + t.i.nbytes AS last
FROM (
    SELECT span_id, end_ns, unnest([x FOR x IN inputs IF x.ref <> 0]) AS i
    FROM read_parquet(getvariable('spans'))
    WHERE len(inputs) > 0
) t
SEMI JOIN handed_twice h ON h.ref = t.i.ref
JOIN span s USING (span_id);

-- handed: what invocations hand out as their own result. Who was given it fills it only if somebody
-- else had taken it before: else it makes no difference whether it wrote or just handed it on.
WITH handed AS (
    SELECT span_id, start_ns, o.ref AS ref, min(o."offset") AS first, max(o."offset" + o.nbytes) AS last
    FROM (
        SELECT span_id, start_ns,
            unnest([x FOR x IN outputs IF x.producer = span_id AND x.ref <> 0 AND x.nbytes > 0]) AS o
        FROM read_parquet(getvariable('spans'))
        WHERE len(outputs) > 0
    )
    SEMI JOIN handed_twice h ON h.ref = o.ref
    GROUP BY span_id, start_ns, ref
),
filled AS (
    SELECT h.*
    FROM handed h
    LEFT JOIN (SELECT DISTINCT span_id, ref FROM taken) own ON own.span_id = h.span_id AND own.ref = h.ref
    LEFT JOIN (SELECT ref, min(end_ns) AS end_ns FROM taken GROUP BY ref) early ON early.ref = h.ref
    WHERE own.ref IS NULL OR early.end_ns <= h.start_ns
),
ranged AS (
    SELECT f.ref, f.first, f.last, s.path_id, s.seq,
        max(f.last) OVER (PARTITION BY f.ref ORDER BY f.first, s.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached,
        min(f.first) OVER (PARTITION BY f.ref ORDER BY f.first, s.seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS follows
    FROM filled f
    JOIN span s USING (span_id)
),
reused AS (
    SELECT ref, min(first) AS first, max(last) AS last, list_sort(list(DISTINCT path_id)) AS producers
    FROM ranged
    WHERE first < reached OR follows < last
    GROUP BY ref
)
SELECT r.producers, list_sort(list(DISTINCT t.path_id) FILTER (t.path_id IS NOT NULL)) AS consumers
FROM reused r
LEFT JOIN taken t ON t.ref = r.ref AND t.first < r.last AND r.first < t.last
GROUP BY r.producers
ORDER BY r.producers;
