import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from fastiter._order.plan import Plan, PlanQueue
from fastiter._ring.lease import Lease
from fastiter._ring.parent_ring import ParentRing
from fastiter._ring.row_reader import Schema

@disjoint_base
class Scheduled:
    """The parent's own record of a batch in the ring. Shared memory is never asked for these."""

    @property
    def q(self) -> int:
        """Its sequence number."""

    @property
    def plan(self) -> Plan: ...
    @property
    def schema(self) -> Schema | None:
        """By which its slot is filled."""

    @property
    def indices(self) -> NDArray[np.int64]: ...
    @property
    def label(self) -> str:
        """Epoch in which the batch begins, and its number there, both from 0, for messages."""

@disjoint_base
class BatchScheduler:
    """The batches in the ring.

    Parameters
    ----------
    ring : ParentRing
    batch_size : int
    n_prefetch : int
        Batches ahead of the one that the caller waits for.
    """

    seed: tuple[int, int]  #: of the iteration, for the random numbers of examples
    _least_bytes: int  #: of a slot, until the columns are known
    _recent_bytes: int  #: of a slot, that recent batches took
    _single_until: int  #: sequence up to which rows are offered one by one, or -1
    _n_prefetch: int  #: batches ahead of the one that is waited for
    _fast_path_ok: bool  #: False makes `take` leave every batch to the subclass

    @property
    def calls(self) -> int:
        """How often `take` was called."""

    @property
    def ready_sum(self) -> int:
        """Batches that were complete at these calls, added up."""

    def __init__(self, ring: ParentRing, batch_size: int, n_prefetch: int) -> None: ...
    @property
    def _ring(self) -> ParentRing: ...
    @property
    def _batch_size(self) -> int: ...
    @property
    def _scheduled(self) -> list[Scheduled]: ...
    @property
    def _schema(self) -> Schema | None: ...
    @property
    def _schema_number(self) -> int: ...
    @property
    def is_own(self) -> bool:
        """Whether this is the process that made it, not a forked child."""

    def set_worker_count(self, count: int) -> None:
        """Have workers from this number on leave when they are through with their slots."""

    @property
    def count_ready(self) -> int:
        """Complete batches from the oldest one on, not taken yet. Any thread may ask."""

    @property
    def is_empty(self) -> bool:
        """Whether no batch is in the ring."""

    def top_up(self, plans: PlanQueue) -> None: ...
    def note_used(self, used: int) -> None:
        """Note how many bytes of its slot a batch has taken."""

    def use_schema(self, schema: Schema) -> None:
        """Have the batches scheduled from now on filled by a schema, just published."""

    def reset(self) -> None: ...
    def lease_head(self, slot: int, converted: bool) -> Lease: ...
    def free_head(self) -> None: ...
    def drop_head(self) -> None: ...
    def take(self) -> Lease | None:
        """Take the oldest batch, if it is complete and nothing special.

        Returns
        -------
        Lease or None
            None if it is not complete, has rows beside its columns, holds what a converter has
            made; or too few slots would be left to keep prefetching. Nothing has changed then.
        """
