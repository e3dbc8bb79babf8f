-- One row per measured variant of a node: on the whole batch, on a part of it, on a shard.
--
-- path | | the node
-- variant | | whole, part or shard
-- split_groups | | groups the batch was split into
-- split_group | | the group, -1 for the whole batch
-- threads | | intra-op threads
-- duration_ns | ns | how long it took
-- cpu_ns | ns | CPU time of the process
-- identical | | whether its rows equal the native result in every bit, null for the native one
-- indices | | indices of the enclosing loops
CREATE VIEW probes AS
SELECT path::VARCHAR AS path, variant::VARCHAR AS variant, groups AS split_groups, "group" AS split_group,
    threads, duration_ns, cpu_ns, identical, iteration AS indices
FROM {probes};
