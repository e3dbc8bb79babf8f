-- One row per pair of nodes and reason why invocations of one depend on invocations of the other.
--
-- consumer | | the node that depends
-- producer | | the node it depends on
-- kind | | data, raw, war or waw, as in dependencies
-- state | | the state, null for data
-- pairs | | pairs of invocations
-- across | | those of them in different RL iterations
-- nbytes | bytes | size of the values taken by all of them, null for a state
CREATE TABLE edges AS
SELECT c.path AS consumer, p.path AS producer, d.kind, d.state, count(*) AS pairs,
    count(*) FILTER (c.iteration_id <> p.iteration_id) AS across, sum(d.nbytes)::BIGINT AS nbytes
FROM dependencies d
JOIN invocations c ON c.span_id = d.span_id
JOIN invocations p ON p.span_id = d.depends_on
GROUP BY c.path, p.path, d.kind, d.state;
