"""Iterators whose workers run on the nodes of a Ray cluster. Needs the extra ``ray``.

Nothing else in the package imports it. It imports `iterators` and what these import.
"""

from fastiter.ray._iterator import RayIterator
from fastiter.ray._job import ClusterError

__all__ = ["ClusterError", "RayIterator"]
