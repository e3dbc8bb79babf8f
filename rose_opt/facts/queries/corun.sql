-- chosen_sample: the first samples of one device, from the first iteration that counts on.
CREATE OR REPLACE TEMP TABLE chosen_sample AS
SELECT start_ns, end_ns, level
FROM sample
WHERE device = getvariable('device') AND start_ns >= (SELECT min(start_ns) FROM root WHERE used)
ORDER BY start_ns
LIMIT getvariable('most');

-- present: leaf invocations of the device's processes during these samples. A key stands for a node, so
-- that the sum of the keys that are present stands for a set.
CREATE OR REPLACE TEMP TABLE present AS
SELECT s.path_id, s.start_ns, s.end_ns, (hash(s.path_id) >> 24)::BIGINT + 1 AS key
FROM span s
JOIN target USING (path_id)
JOIN process_device d USING (process_id)
WHERE d.device = getvariable('device') AND s.end_ns > s.start_ns
    AND s.end_ns > (SELECT min(start_ns) FROM chosen_sample)
    AND s.start_ns < (SELECT max(end_ns) FROM chosen_sample);

-- running_set: what runs from each moment on at which that changes; 0 is nothing.
CREATE OR REPLACE TEMP TABLE running_set AS
SELECT start_ns, (sum(change) OVER (ORDER BY start_ns ROWS UNBOUNDED PRECEDING))::BIGINT AS running
FROM (
    SELECT start_ns, sum(change) AS change
    FROM (SELECT start_ns, key AS change FROM present UNION ALL SELECT end_ns, -key FROM present)
    GROUP BY start_ns
);

-- member: the nodes of each set, read off one moment at which it runs.
CREATE OR REPLACE TEMP TABLE member AS
WITH example AS (SELECT running, min(start_ns) AS at_ns FROM running_set WHERE running <> 0 GROUP BY running)
SELECT e.running, list_sort(list(DISTINCT p.path_id)) AS paths
FROM example e
JOIN present p ON p.start_ns <= e.at_ns AND p.end_ns > e.at_ns
GROUP BY e.running;
