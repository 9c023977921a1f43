"""Worker processes: how they start, fetch rows, fail and are replaced."""
