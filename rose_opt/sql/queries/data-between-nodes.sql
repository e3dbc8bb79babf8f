-- How much data moves from which node to which?
-- Bytes of the values that leaf nodes took, each value once per invocation.
SELECT producer, consumer, pairs, nbytes, nbytes // pairs AS mean_bytes, across
FROM edges
WHERE kind = 'data'
ORDER BY nbytes DESC, producer, consumer;
