-- Which version of a state did every read see, such as the policy's weights in every inference?
-- One row per read of a leaf node in the order of starts; writes counts the writes since recording began, writer is the node whose write it saw, null where that was before the recording or outside of the finished iterations.
SELECT i.iteration, i.path, i.span_id, i.split_group, s.state, s.version AS writes, w.path AS writer, d.depends_on AS writer_id
FROM states s
JOIN invocations i USING (span_id)
LEFT JOIN dependencies d ON d.span_id = s.span_id AND d.kind = 'raw' AND d.state = s.state
LEFT JOIN invocations w ON w.span_id = d.depends_on
WHERE s.access = 'read' AND i.leaf
ORDER BY i.seq, s.state, writer_id;
