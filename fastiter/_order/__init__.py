"""Permutations, weighted draws, mixtures, plans of batches, random numbers of an example."""
