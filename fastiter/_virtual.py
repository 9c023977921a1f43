"""The module of `VirtualOrder` in version 0.1.0, which pickled iterators name."""

from fastiter._order.permutation import VirtualOrder

__all__ = ["VirtualOrder"]
