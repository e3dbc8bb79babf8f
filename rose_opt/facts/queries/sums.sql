-- sums: what loops say of their iterations that were not recorded in full, by path. Runs are runs of
-- the body (iterations of a loop); alias is the producer of what those invocations returned. The
-- loop's own row has its iterations left out and the last of them.
CREATE TEMP TABLE sums AS
WITH entry AS (
    SELECT span_id AS loop_id, path::VARCHAR AS loop_path, unnest(map_entries(attributes)) AS entry
    FROM read_parquet(getvariable('spans'))
    WHERE kind = 'loop' AND map_extract_value(attributes, 'unsampled') IS NOT NULL
),
told AS (
    SELECT loop_id, entry.key = 'unsampled' AS own, string_split(entry.value, ' ') AS word,
        loop_path || substr(entry.key, length('unsampled') + 1) AS path
    FROM entry
    WHERE entry.key = 'unsampled' OR starts_with(entry.key, 'unsampled/')
)
SELECT
    told.loop_id, told.own, told.path, path.path_id, l.seq, l.used, l.root_cell,
    CASE WHEN own THEN 0 ELSE word[1]::BIGINT END AS count,
    CASE WHEN own THEN 0 ELSE word[2]::BIGINT END AS total_ns,
    CASE WHEN own THEN word[2]::BIGINT - word[1]::BIGINT
        WHEN path.kind = 'loop' THEN word[3]::BIGINT
        ELSE word[1]::BIGINT END AS runs,
    CASE WHEN own THEN word[2]::INTEGER - 1 END AS last_idx,
    CASE WHEN NOT own THEN word[4]::UBIGINT END AS alias
FROM told
JOIN span l ON l.span_id = told.loop_id
LEFT JOIN path ON path.path = told.path;

-- What was made in an iteration left out counts as made in the last of them: nothing after it can be
-- closer, so no distance is taken for longer than it is.
INSERT INTO cell
SELECT id, loop_id, last_idx, loop_path, parent, list_append(chain, id)
FROM (
    SELECT ((SELECT max(cell_id) FROM cell) + row_number() OVER (ORDER BY s.seq))::INTEGER AS id,
        s.loop_id, s.last_idx, s.path_id AS loop_path, home.cell_id AS parent, home.chain
    FROM sums s
    JOIN span l ON l.span_id = s.loop_id
    JOIN cell home ON home.cell_id = l.cell_id
    WHERE s.own
);

-- Paths that only ran where nothing was recorded in full.
SELECT DISTINCT path FROM sums WHERE path_id IS NULL ORDER BY path;
