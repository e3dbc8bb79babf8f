-- What did the recording lose?
-- One row per process. missing is what it said it wrote and is not in the file, null where it never got to say; a complete trace has neither lost nor missing rows.
SELECT p.process, p.pid, p.spans, p.expected, p.expected - p.spans AS missing, p.lost, p.failure, r.complete, r.reasons
FROM recording r
LEFT JOIN processes p ON true
ORDER BY p.lost DESC, p.process, p.pid;
