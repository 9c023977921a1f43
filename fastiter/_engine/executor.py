"""Executors, which make the batches of plans: their base class, and their common parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastiter._order.example_context import ExampleContext, keep_generators
from fastiter._stats.autotune import Adjustable
from fastiter._stats.stats import LoaderStats
from fastiter._util.failures import capture

if TYPE_CHECKING:
    from fastiter._order.example_context import Seed
    from fastiter._order.plan import Plan, PlanQueue
    from fastiter._ring.arena import Arena
    from fastiter._stats.trace import WorkerTraces


class Executor(Adjustable):
    """Makes the batches of plans: in the calling thread, in threads, in processes, on a cluster.

    All methods are called in the caller's thread under the lock of the loop, but those that say
    otherwise. An executor has no reference to the iterator that it belongs to, so that this one
    ends with its last reference.

    A subclass that does not define one of them has no workers, or nothing to do there.
    """

    seed: Seed  #: of the random numbers of examples; set when a state is loaded, before `drop`

    @property
    def n_workers(self) -> int:
        """Present number of workers; 0 where the caller makes the batches."""
        return 0

    @property
    def n_prefetch(self) -> int:
        """Present number of batches made ahead; 0 where the caller makes them."""
        return 0

    @property
    def arena(self) -> Arena | None:
        """Shared memory in which the batches lie."""
        return None

    def start(self, plans: PlanQueue) -> None:
        """Have workers begin as many batches as are wanted ahead. Returns without waiting."""

    def make(self, plans: PlanQueue, plan: Plan) -> Plan:
        """Wait for the batch of ``plan``, the first one of ``plans``; return this plan, or one that
        has become the first, since its batch was complete before. Its outcome is the batch or the
        `Failure` of the batch.

        What it raises (KeyboardInterrupt, a TimeoutWarning, an error of the workers' start) belongs
        to the call: the next one makes the same batch.
        """
        raise NotImplementedError

    def ready(self, plans: PlanQueue) -> Plan | None:
        """Give the next plan after those that were made its outcome, without waiting, and return
        it; None if its batch is not complete, or if a policy has to decide about a row of it."""
        return None

    def adjust(self, name: str, count: int) -> None:
        """As in `Adjustable`, like the next two."""

    def is_steady(self) -> bool:
        return True

    def bytes_each(self, name: str) -> int:
        return 0

    def drop(self, begun: list[Any]) -> None:
        """End the work for plans that are gone. Waits for nothing."""

    def interrupt(self) -> None:
        """Have `make` in another thread raise. Takes no lock."""

    def after_fork(self, lock: Any) -> None:
        """In a forked child, which has no workers: ``lock`` is the loop's now."""

    def close(self) -> None:
        """End all workers, in bounded time. What `stats` and `traces` tell stays. Takes the lock
        by itself, if it needs it."""

    def join(self) -> None:
        """Wait for what has no end yet after `close`, in bounded time."""

    def stats(self, seconds: float) -> LoaderStats:
        """Counters of the workers for the last ``seconds``. Any thread may ask; no lock."""
        return LoaderStats()

    def trace(self, on: bool) -> None:
        """Begin or end a record of what workers do."""

    def traces(self) -> WorkerTraces:
        return {}


def capture_in(seed: Seed | None, plan: Plan, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function for the batch of a plan; return what it returns, or its `Failure`. With a
    seed it seeds the global generators: the caller's stay as they are."""
    if seed is None:
        return capture(function, *arguments)
    context = ExampleContext(seed, plan, None)
    return capture(keep_generators, context.run, function, *arguments)
