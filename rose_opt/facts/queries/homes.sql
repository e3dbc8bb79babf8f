-- Children of composites are at home where the composite is.
INSERT INTO home
SELECT r.span_id, h.loop_id, h.idx
FROM raw r
JOIN place p USING (path_id)
JOIN home h ON h.span_id = r.parent_id
WHERE p.hops = getvariable('hops');
