-- One row per data reference of a span: a value that it took or made.
--
-- span_id | | the span
-- path | | its node
-- process | | role of the process that ran it
-- iteration | | index of the RL iteration around it
-- direction | | input or output
-- slot | | place in the arguments or the result, e.g. 0.obs.image
-- ref | | identity of the value, 0 if unknown
-- producer | | span_id of what made the value, 0 if unknown
-- offset_bytes | bytes | where the view starts in its storage
-- nbytes | bytes | size of the value
-- device | | where it lives
-- shape | | length of every axis
-- dtype | | type of its elements
CREATE VIEW refs AS
SELECT
    span_id, path, process, iteration, direction,
    r.slot AS slot, r.ref AS ref, r.producer AS producer, r."offset" AS offset_bytes, r.nbytes AS nbytes,
    r.device AS device, r.shape AS shape, r.dtype AS dtype
FROM (
    SELECT span_id, path::VARCHAR AS path, process::VARCHAR AS process, iteration[1] AS iteration,
        'input' AS direction, unnest(inputs) AS r
    FROM {spans}
    UNION ALL
    SELECT span_id, path::VARCHAR, process::VARCHAR, iteration[1], 'output', unnest(outputs)
    FROM {spans}
);
