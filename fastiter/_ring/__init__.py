"""The ring of slots in shared memory: arena, schemas, rows, both halves, leases, streams."""
