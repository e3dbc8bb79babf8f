SELECT DISTINCT process_id FROM raw ORDER BY process_id;
