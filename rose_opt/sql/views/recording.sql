-- One row: what the trace says about itself.
--
-- run | | id of the run
-- schema_version | | version of the recorded tables
-- complete | | whether every row that was recorded is in the file
-- reasons | | why it is not complete, empty otherwise
-- spans | rows | spans in the file
-- samples | rows | activity samples in the file
-- lost | rows | rows that no process could write
-- activity_source | | source of activity that the recorder chose, null if none
-- producer | | versions of what wrote it, a JSON object
CREATE VIEW recording AS
SELECT run, schema_version, complete, reasons, spans, samples, lost, activity_source, producer
FROM ({recording});
