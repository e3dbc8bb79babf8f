-- handed_twice: storages that more than one value handed out by its own producer lies in. All others
-- cannot be shared buffers, and in most programs that is all of them.
CREATE TEMP TABLE handed_twice AS
SELECT ref
FROM (
    SELECT span_id, unnest(outputs).ref AS ref, unnest(outputs).producer AS producer, unnest(outputs).nbytes AS nbytes
    FROM read_parquet(getvariable('spans'))
    WHERE len(outputs) > 0
)
WHERE producer = span_id AND ref <> 0 AND nbytes > 0
GROUP BY ref
HAVING count(*) > 1;

SELECT count(*) AS found FROM handed_twice;
