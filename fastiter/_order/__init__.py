"""Orders of indices, the plan of batches, and seeds of examples. Imports `_util` and `_clib`."""
