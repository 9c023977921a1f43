"""Index generation: permutations, weighted draws, the plan of batches, and seeds of examples."""
