-- span: raw invocations with the cell they are in; those of root calls that failed or did not end drop out here.
CREATE TEMP TABLE span AS
WITH inside AS (
    SELECT c.loop_id, c.idx, c.cell_id, c.chain[1] AS root_cell, root.used
    FROM cell c
    JOIN cell outermost ON outermost.cell_id = c.chain[1]
    JOIN root ON root.process_id = outermost.loop_id AND root.idx = outermost.idx
)
SELECT r.seq, r.span_id, r.parent_id, r.path_id, c.cell_id, c.root_cell,
    r.start_ns, r.end_ns, r.cpu_ns, r.threads, r.process_id, r.runs, c.used
FROM raw r
JOIN home h USING (span_id)
JOIN inside c ON c.loop_id = h.loop_id AND c.idx = h.idx;
