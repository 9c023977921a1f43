"""fastiter's samplers in loaders of torch. Imports what `fastiter.torch` may import."""
