"""The former module of `VirtualOrder`, which pickled iterators name."""

from fastiter._order.permutation import VirtualOrder

__all__ = ["VirtualOrder"]
