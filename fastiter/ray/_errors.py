"""The exception of what happens to a cluster as a whole."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """The cluster cannot be reached, or what connects this program with it was lost.

    That is the head of the cluster, the raylet of this machine, or the helper process of the
    iterator. A lost node or worker is no error: others make the rows. No batch is lost: the next
    call of ``next()`` connects again, and a saved state goes on with any iterator.
    """
