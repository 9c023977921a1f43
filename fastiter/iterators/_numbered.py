"""The former module of `OrderBuffers`, which pickled iterators of version 0.1.0 name."""

from fastiter.iterators._seeded_sampler import OrderBuffers, Record, Share

__all__ = ["OrderBuffers", "Record", "Share"]
