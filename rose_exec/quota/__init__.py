"""SM quotas: how much of a GPU a process or a node may use."""
