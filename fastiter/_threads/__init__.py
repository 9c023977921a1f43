"""Worker threads of `MultithreadIterator`: tasks, and batches that several threads fill."""
