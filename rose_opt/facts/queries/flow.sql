-- flow: which iteration's invocations of one node take values from which iteration's invocations of
-- another. Rewritable loops only hand values on to the nodes in them and are left out.
CREATE TEMP TABLE flow AS
WITH used AS (
    SELECT span_id, unnest(inputs).producer AS producer
    FROM read_parquet(getvariable('spans'))
    WHERE len(inputs) > 0
),
maker AS (
    SELECT span_id, path_id, cell_id FROM span
    UNION ALL
    SELECT s.alias, s.path_id, c.cell_id
    FROM sums s
    JOIN sums o ON o.loop_id = s.loop_id AND o.own
    JOIN cell c ON c.loop_id = o.loop_id AND c.idx = o.last_idx
    WHERE NOT s.own
)
SELECT p.path_id AS producer, c.path_id AS consumer, p.cell_id AS producer_cell, c.cell_id AS consumer_cell, c.seq
FROM used u
JOIN span c USING (span_id)
JOIN path USING (path_id)
JOIN maker p ON p.span_id = u.producer
WHERE u.producer <> 0 AND NOT (path.kind = 'loop' AND path.rewritable AND path.uniform);

-- apart: pairs of different iterations that a value connects: the innermost loop around both, the
-- distance in it, and, where both sides are in loops of their own below it, in which iterations.
CREATE TEMP TABLE apart AS
WITH pair AS (
    SELECT producer_cell, consumer_cell, p.loop_id = c.loop_id AS siblings, p.chain AS p_chain, c.chain AS c_chain
    FROM (SELECT DISTINCT producer_cell, consumer_cell FROM flow WHERE producer_cell <> consumer_cell)
    JOIN cell p ON p.cell_id = producer_cell
    JOIN cell c ON c.cell_id = consumer_cell
),
shared AS (
    SELECT producer_cell, consumer_cell, producer_cell AS p_id, consumer_cell AS c_id, NULL AS common_id
    FROM pair
    WHERE siblings
    UNION ALL
    SELECT producer_cell, consumer_cell, p_chain[depth + 1], c_chain[depth + 1], p_chain[depth]
    FROM (
        SELECT *, len(list_filter(p_chain, lambda cell_id, place: cell_id = c_chain[place])) AS depth
        FROM pair
        WHERE NOT siblings
    )
)
SELECT
    s.producer_cell,
    s.consumer_cell,
    coalesce(p.loop_id = c.loop_id, false) AS same_loop,
    CASE WHEN same_loop THEN c.loop_path ELSE common.loop_path END AS loop_path,
    CASE WHEN same_loop THEN c.idx - p.idx ELSE 0 END AS distance,
    CASE WHEN NOT same_loop THEN common.cell_id END AS scope,
    CASE WHEN NOT same_loop THEN p.cell_id END AS producer_side,
    CASE WHEN NOT same_loop THEN c.cell_id END AS consumer_side,
    CASE WHEN NOT same_loop THEN p.idx - c.idx END AS shift
FROM shared s
LEFT JOIN cell common ON common.cell_id = s.common_id
LEFT JOIN cell p ON p.cell_id = s.p_id
LEFT JOIN cell c ON c.cell_id = s.c_id;

-- One row per (producer, consumer, loop, distance): whether one iteration on the consumer's side
-- takes values from several of the producer's, and by how much the iterations are shifted.
WITH per_consumer AS (
    SELECT f.producer, f.consumer, a.loop_path, a.distance, a.consumer_side, min(f.seq) AS seq,
        count(DISTINCT a.producer_side) AS sources, min(a.shift) AS low, max(a.shift) AS high
    FROM flow f
    JOIN apart a USING (producer_cell, consumer_cell)
    GROUP BY f.producer, f.consumer, a.loop_path, a.distance, a.scope, a.consumer_side
    UNION ALL
    SELECT f.producer, f.consumer, c.loop_path, 0, NULL, min(f.seq), 0, NULL, NULL
    FROM flow f
    JOIN cell c ON c.cell_id = f.consumer_cell
    WHERE f.producer_cell = f.consumer_cell
    GROUP BY f.producer, f.consumer, c.loop_path
)
SELECT producer, consumer, loop_path, distance, min(seq) AS seq,
    max(sources) > 1 AS all_iterations,
    CASE WHEN min(low) = max(high) AND bool_and(consumer_side IS NOT NULL) AND max(sources) = 1 THEN min(low) END
        AS alignment
FROM per_consumer
GROUP BY producer, consumer, loop_path, distance
ORDER BY producer, consumer, loop_path, distance;
