"""Iterators whose workers run on the nodes of a Ray cluster. Needs the extra ``ray``.

Nothing else in the package imports it. It imports `iterators` and what these import.
"""

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"fastiter.ray needs Ray: pip install ray (import ray: {error})",
        name="ray",
    ) from error

from fastiter.ray._iterator import RayIterator
from fastiter.ray._shared import ClusterError

__all__ = ["ClusterError", "RayIterator"]
