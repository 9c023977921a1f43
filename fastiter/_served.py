"""What a fork server imports for its workers, and does once for all of them: they find the pools of
native libraries limited."""

from fastiter import _pools, _worker  # noqa: F401 - the import is the purpose

_pools.limit_pools()
