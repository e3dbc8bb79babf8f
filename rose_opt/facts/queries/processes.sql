SELECT process_id FROM process ORDER BY process_id;
