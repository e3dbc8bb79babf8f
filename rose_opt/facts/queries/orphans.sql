-- Invocations whose caller was not recorded.
SELECT count(*) AS orphans, min(path.path) AS example
FROM raw r
JOIN path USING (path_id)
WHERE path_id <> 0 AND NOT EXISTS (FROM raw parent WHERE parent.span_id = r.parent_id);
