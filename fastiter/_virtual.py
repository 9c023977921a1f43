"""The former module of `VirtualOrder`, which pickled iterators of version 0.1.0 name."""

from fastiter._order.virtual import VirtualOrder

__all__ = ["VirtualOrder"]
