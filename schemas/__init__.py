"""JSON snapshots of the trace's tables, and the JSON Schema of the plan."""
