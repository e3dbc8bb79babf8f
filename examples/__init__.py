"""Complete programs that train with Rose."""
