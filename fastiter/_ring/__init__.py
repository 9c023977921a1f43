"""The ring of slots in shared memory: memory, parent's half, worker's half, rows, streams."""
