-- One row per process that recorded: what it wrote and what was lost.
--
-- process | | role of the process
-- pid | | its process id
-- spans | rows | its spans in the file
-- samples | rows | its activity samples in the file
-- expected | rows | spans that it said it wrote, null where it never got to say
-- lost | rows | rows that it could not write
-- failure | | what ended its recording early, null for a clean end
CREATE VIEW processes AS
SELECT process, pid, spans, samples, expected, lost, failure
FROM ({processes});
