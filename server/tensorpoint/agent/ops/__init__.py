"""The operation that made the first bad value: which, at which line, of what, and why."""
