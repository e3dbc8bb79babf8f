-- touch: how each iteration of each loop invocation touches each state, from the invocations
-- directly in it (later from the iterations inside it, so one pair may have
-- several rows): the first access decides whether it sees what came before, any write whether it
-- leaves something behind.
CREATE TEMP TABLE touch AS
SELECT
    s.cell_id,
    a.state_id,
    min(s.seq) AS first_seq,
    arg_min(a.mode, s.seq) AS first_mode,
    arg_min(s.path_id, s.seq) AS first_path,
    max(s.seq) FILTER (a.mode <> 'read') AS write_seq,
    arg_max(s.path_id, s.seq) FILTER (a.mode <> 'read') AS write_path,
    arg_max(a.mode, s.seq) FILTER (a.mode <> 'read') AS write_mode
FROM span s
JOIN access a USING (path_id)
GROUP BY s.cell_id, a.state_id;
