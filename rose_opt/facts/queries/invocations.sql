-- process: who ran anything, numbered by role and id.
CREATE TEMP TABLE process AS
SELECT row_number() OVER (ORDER BY process::VARCHAR, pid)::INTEGER AS process_id, process::VARCHAR AS process, pid
FROM (SELECT DISTINCT process, pid FROM read_parquet(getvariable('spans')));

-- wait: CUDA calls in which the host waits for the device.
CREATE TEMP TABLE wait AS
SELECT s.parent_id, s.node::VARCHAR AS node, s.start_ns, s.end_ns, o.process_id
FROM read_parquet(getvariable('spans')) s
JOIN process o ON o.process = s.process::VARCHAR AND o.pid = s.pid
WHERE s.kind = 'sync';

-- raw: one row per invocation below the root, seq is program order (start order in a native run).
CREATE TEMP TABLE raw AS
SELECT
    row_number() OVER (ORDER BY s.start_ns, p.path_id, s.span_id) - 1 AS seq,
    s.span_id,
    s.parent_id,
    p.path_id,
    s.iteration[-1] AS idx,
    CASE WHEN s.kind = 'exec' THEN 1
        ELSE coalesce(map_extract_value(s.attributes, 'sampled')::INTEGER, s.count) END AS runs,
    s.start_ns,
    greatest(s.end_ns, coalesce(s.device_end_ns, s.end_ns)) AS end_ns,
    s.cpu_ns,
    s.threads,
    s.status = 'ok' AS ok,
    o.process_id
FROM read_parquet(getvariable('spans')) s
JOIN path p ON p.path = s.path::VARCHAR
JOIN process o ON o.process = s.process::VARCHAR AND o.pid = s.pid
WHERE s.kind IN ('exec', 'loop', 'iteration');

-- root: calls of the root that finished; idx counts them per process.
CREATE TEMP TABLE root AS
SELECT
    r.span_id,
    r.process_id,
    (row_number() OVER (PARTITION BY r.process_id ORDER BY r.seq) - 1)::INTEGER AS idx,
    r.start_ns,
    r.end_ns,
    count(*) OVER (PARTITION BY r.process_id) = 1
        OR row_number() OVER (PARTITION BY r.process_id ORDER BY r.seq) > 1 AS used
FROM raw r
WHERE r.path_id = 0 AND r.ok;

-- home: the loop invocation and iteration that an invocation belongs to, whatever composites lie
-- between. The root's iterations are keyed by its process, so that its calls form one loop.
CREATE TEMP TABLE home (span_id UBIGINT, loop_id UBIGINT, idx INTEGER);

INSERT INTO home
SELECT r.span_id, coalesce(root.process_id::UBIGINT, r.parent_id), coalesce(root.idx, r.idx)
FROM raw r
JOIN place p USING (path_id)
LEFT JOIN root ON root.span_id = r.parent_id
WHERE p.hops = 0 AND (p.parent_path_id <> 0 OR root.span_id IS NOT NULL);
