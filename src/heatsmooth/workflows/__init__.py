"""A command from its arguments to its run directory: load, compute, record. Repeating one continues it."""
