-- flow: which iteration's invocations of one node feed which iteration's invocations of another.
CREATE TEMP TABLE flow AS
WITH used AS (
    SELECT span_id, unnest(list_distinct([i.producer FOR i IN inputs])) AS producer
    FROM read_parquet(getvariable('spans'))
    WHERE len(inputs) > 0
)
SELECT p.path_id AS producer, c.path_id AS consumer, p.cell_id AS producer_cell, c.cell_id AS consumer_cell,
    min(c.seq) AS seq
FROM used u
JOIN span c USING (span_id)
JOIN span p ON p.span_id = u.producer
WHERE u.producer <> 0
GROUP BY ALL;

-- reach: the same with the innermost loop around both, the distance in it, and where both sides are
-- in loops of their own below it.
CREATE TEMP TABLE reach AS
WITH near AS (
    SELECT producer, consumer, seq, c.loop_path, 0 AS distance,
        NULL::INTEGER AS scope, NULL::INTEGER AS producer_side, NULL::INTEGER AS consumer_side
    FROM flow
    JOIN cell c ON c.cell_id = consumer_cell
    WHERE producer_cell = consumer_cell
),
apart AS (
    SELECT f.producer, f.consumer, f.seq, len(list_intersect(p.chain, c.chain)) AS shared,
        p.chain[shared] AS common_id, p.chain[shared + 1] AS p_id, c.chain[shared + 1] AS c_id
    FROM flow f
    JOIN cell p ON p.cell_id = f.producer_cell
    JOIN cell c ON c.cell_id = f.consumer_cell
    WHERE f.producer_cell <> f.consumer_cell
),
far AS (
    SELECT a.producer, a.consumer, a.seq,
        coalesce(p.loop_id = c.loop_id, false) AS same_loop,
        CASE WHEN same_loop THEN c.loop_path ELSE common.loop_path END AS loop_path,
        CASE WHEN same_loop THEN c.idx - p.idx ELSE 0 END AS distance,
        CASE WHEN same_loop THEN NULL ELSE common.cell_id END AS scope,
        CASE WHEN same_loop THEN NULL ELSE p.cell_id END AS producer_side,
        CASE WHEN same_loop THEN NULL ELSE c.cell_id END AS consumer_side
    FROM apart a
    LEFT JOIN cell common ON common.cell_id = a.common_id
    LEFT JOIN cell p ON p.cell_id = a.p_id
    LEFT JOIN cell c ON c.cell_id = a.c_id
)
FROM near
UNION ALL
SELECT producer, consumer, seq, loop_path, distance, scope, producer_side, consumer_side FROM far;

-- One row per (producer, consumer, loop, distance): whether one iteration on the consumer's side
-- takes values from several of the producer's, and by how much the iterations are shifted.
WITH per_consumer AS (
    SELECT r.producer, r.consumer, r.loop_path, r.distance, r.scope, r.consumer_side, min(r.seq) AS seq,
        count(DISTINCT r.producer_side) AS sources,
        min(p.idx - c.idx) AS low, max(p.idx - c.idx) AS high
    FROM reach r
    LEFT JOIN cell p ON p.cell_id = r.producer_side
    LEFT JOIN cell c ON c.cell_id = r.consumer_side
    GROUP BY ALL
)
SELECT producer, consumer, loop_path, distance, min(seq) AS seq,
    max(sources) > 1 AS all_iterations,
    CASE WHEN min(low) = max(high) AND bool_and(consumer_side IS NOT NULL) AND max(sources) = 1 THEN min(low) END
        AS alignment
FROM per_consumer
GROUP BY producer, consumer, loop_path, distance
ORDER BY producer, consumer, loop_path, distance;
