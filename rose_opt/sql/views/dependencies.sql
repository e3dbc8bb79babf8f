-- One row per invocation of a leaf node and invocation that it depends on.
--
-- span_id | | the invocation
-- depends_on | | span_id of the other
-- kind | | data: it takes a value; raw: it reads or updates what the other wrote; waw: it replaces that; war: it replaces what the other read
-- state | | the state, null for data
-- nbytes | bytes | size of the distinct values taken, null for a state
CREATE TABLE dependencies AS
WITH taken AS (
    SELECT span_id, r.producer AS producer, r.ref AS ref, max(r.nbytes) AS nbytes
    FROM (SELECT span_id, unnest(inputs) AS r FROM {spans} WHERE len(inputs) > 0)
    WHERE r.producer <> 0
    GROUP BY ALL
),
access AS (
    SELECT s.span_id, i.rank, i.seq, i.row_start, i.row_stop, s.state, s.access, s.version, s.version_after
    FROM states s
    JOIN invocations i USING (span_id)
    WHERE i.leaf
),
write AS (
    FROM access WHERE access <> 'read'
),
pair AS (
    SELECT a.span_id, w.span_id AS depends_on, a.state, CASE a.access WHEN 'refresh' THEN 'waw' ELSE 'raw' END AS kind
    FROM access a
    JOIN write w ON w.rank = a.rank AND w.state = a.state AND w.version_after = a.version
        AND w.seq < a.seq AND coalesce(w.row_start < a.row_stop AND a.row_start < w.row_stop, true)
    UNION
    SELECT w.span_id, r.span_id, w.state, 'war'
    FROM write w
    JOIN access r ON r.rank = w.rank AND r.state = w.state AND r.version = w.version
        AND r.access = 'read' AND r.seq < w.seq AND coalesce(r.row_start < w.row_stop AND w.row_start < r.row_stop, true)
)
SELECT t.span_id, t.producer AS depends_on, 'data' AS kind, NULL::VARCHAR AS state, sum(t.nbytes)::BIGINT AS nbytes
FROM taken t
JOIN invocations c ON c.span_id = t.span_id AND c.leaf
JOIN invocations p ON p.span_id = t.producer
GROUP BY t.span_id, t.producer
UNION ALL
SELECT span_id, depends_on, kind, state, NULL FROM pair;
