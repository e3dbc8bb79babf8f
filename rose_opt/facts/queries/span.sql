-- span: raw invocations with the cell they are in; those of failed root calls drop out here.
CREATE TEMP TABLE span AS
SELECT r.seq, r.span_id, r.parent_id, r.path_id, c.cell_id, c.chain[1] AS root_cell,
    r.start_ns, r.end_ns, r.cpu_ns, r.threads, r.process_id, root.used
FROM raw r
JOIN home h USING (span_id)
JOIN cell c ON c.loop_id = h.loop_id AND c.idx = h.idx
JOIN cell root_of ON root_of.cell_id = c.chain[1]
JOIN root ON root.process_id = root_of.loop_id AND root.idx = root_of.idx;
