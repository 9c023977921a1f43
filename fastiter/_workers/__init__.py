"""Worker processes: how they start, fetch rows, convert batches, fail and are replaced."""
