"""The main function of a `DataLoader`'s workers: it makes whole batches, or rows of columns."""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data._utils.worker as torch_worker
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, _DatasetKind
from torch.utils.data.graph_settings import apply_random_seed

from fastiter._fetch.seeded import SingleExamples
from fastiter._order import example_context
from fastiter._order.example_context import ExampleContext
from fastiter._ring.arena import WorkerRing
from fastiter._ring.schema import Schema
from fastiter._util.failures import dump, known_class, never_skipped
from fastiter._workers import row_writer
from fastiter._workers.main import BatchJob, WorkerArguments, seed_torch
from fastiter.torch._batches.collate import (
    CollateBy,
    collate,
    is_default,
    schema_for,
    stack,
    use_own_functions,
)
from fastiter.torch._examples import Numbered, Seeded
from fastiter.torch._state import begin_fetching, is_any_stateful, lack_of, state_of


class Request(NamedTuple):
    """A batch that one worker makes as a whole."""

    keys: Any  #: of the sampler
    epoch: int
    number: int  #: keys of this worker's batches before this one in the epoch; -1: only its state
    wants_state: bool
    room: int  #: rows of the columns wanted that such batches could be made from; 0: none are
    shared_seed: int | None
    seeds: bytes | None  #: of the global generators, for each example
    origin: Any  #: of the examples' random numbers, as `Numbered` has it; None for a state alone


class Reply(NamedTuple):
    """A worker's answer, where that is not the batch alone."""

    batch: Any  #: `ExceptionWrapper` if making it failed; None if the worker's dataset has ended
    state: dict[str, Any] | None = None
    is_end: bool = False
    schema: Schema | None = None
    n_rows: int | None = None  #: of a batch with fewer examples than keys
    #: place and `dump` of the keys that have failed, where a policy decides about them
    failures: tuple[tuple[int, Any], ...] = ()


def plain_attributes(error: BaseException) -> dict[str, Any]:
    """Texts and numbers that an exception has as attributes, such as the path of a file."""
    number = {"errno": error.errno} if isinstance(error, OSError) else {}  # not in its dict
    found = {**number, **vars(error)}
    return {name: value for name, value in found.items() if type(value) in (str, int)}


@dataclasses.dataclass(eq=False, kw_only=True)
class LoaderJob(BatchJob):
    """Makes the batches of a `DataLoader`: whole ones, or of rows as `batch_converter` says."""

    kind: int  #: torch's, of the dataset
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    base_seed: int  #: worker w seeds the global generators with ``base_seed + w``
    #: for each worker, state from which it begins the epoch, and number of keys that this covers
    states: list[tuple[dict[str, Any], int] | None]
    seed_examples: bool  #: whether random numbers belong to the examples
    #: 'skip': batches are made without the keys that fail; 'ask': where keys fail, the others'
    #: examples go to the parent; None: no policy decides about them
    tolerates: str | None
    learns_columns: bool  #: where workers share the rows of all batches

    image = "the image of dataset and collate_fn"
    end_seconds = 5.0  # as torch's: an example that takes long is fetched to its end

    @property
    def names(self) -> dict[str, Any]:
        return {
            "worker_init_fn": self.worker_init,
            "collate_fn": self.collate_fn,
            "the dataset": self.dataset,
        }

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        maker = _WholeBatchMaker(self, arguments.number, len(self.states), end)
        dataset: Any = self.dataset if maker.error is None else _Broken(maker.error)
        if self.seed_examples:
            dataset = Seeded(dataset)
        elif not self.auto_collation:
            dataset = SingleExamples(dataset)  # as torch asks where there are no batches
        two_steps = self.retries or self.hedges
        rows = row_writer.RowWriter(end, dataset, maker.answer, two_steps, self.hedges)
        if self.seed_examples:
            dataset.next_seed = rows.own_seed
        example_context.set_worker(rows)

        def work() -> None:
            rows.run(self.batch_converter, 0)
            maker.end()

        return work


class _Broken:
    """A dataset whose worker_init_fn has failed."""

    def __init__(self, error: ExceptionWrapper) -> None:
        self._error = error

    def __getitem__(self, index: int) -> None:
        try:
            self._error.reraise()
        except Exception as error:
            raise never_skipped(error)  # noqa: B904  # the same one


class _WholeBatchMaker:
    """Answers requests, as torch's worker does."""

    def __init__(self, job: LoaderJob, number: int, n_workers: int, end: WorkerRing) -> None:
        self._job = job
        self._number = number
        self._epoch = -1
        self.error: ExceptionWrapper | None = None
        self._dataset = job.dataset
        has_default = job.auto_collation and is_default(job.collate_fn)
        use_own_functions()
        join = functools.partial(stack, take_memory=end.take_memory)
        self._collate_fn = CollateBy(join) if has_default else job.collate_fn
        self._finds_misfits = has_default
        self._room = 0
        self._n_rows: int | None = None
        self._n_examples = 0  # of the last answer
        self._failures: tuple[tuple[int, Any], ...] = ()
        self._fetcher: Any = None
        seed = job.base_seed + number
        random.seed(seed)
        seed_torch(torch, seed)
        np.random.seed(torch_worker._generate_state(job.base_seed, number))
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=number, num_workers=n_workers, seed=seed, dataset=self._dataset
        )
        try:
            if job.worker_init is not None:
                job.worker_init(number)
        except Exception as error:
            self.error = self._wrapped(error)

    def end(self) -> None:
        """Let go of the dataset and its iterator, which may have something to do at their end."""
        self._fetcher = None
        torch_worker._worker_info = None

    def answer(self, request: Request) -> tuple[int, Any]:
        """The batch that is asked for, or a `Reply`, after its number of examples."""
        try:
            if self.error is not None:
                return 0, Reply(self.error)
            # Without an example: __iter__ and a collate function have no numbers of the first row.
            context = ExampleContext((0, 0), None, None)
            if request.epoch != self._epoch:
                context.run(self._begin, request)
            if request.number < 0:
                has_state = is_any_stateful(self._fetcher, self._dataset)
                return 0, Reply(None, self._first_state if has_state else None)
            reply = context.run(self._reply, request)
            return self._n_examples, reply
        except Exception as error:
            return 0, Reply(self._wrapped(error))

    def _wrapped(self, error: Exception) -> ExceptionWrapper:
        wrapper = ExceptionWrapper(where=f"in DataLoader worker process {self._number}")
        wrapper.exc_type = known_class(error)  # of which its pickle consists, besides texts
        wrapper.facts = plain_attributes(error)
        return wrapper

    def _begin(self, request: Request) -> None:
        """Begin an epoch: the first one of this process from the state that was loaded."""
        job = self._job
        if isinstance(self._dataset, IterDataPipe) and request.shared_seed is not None:
            shared = torch.Generator().manual_seed(request.shared_seed)
            self._dataset = apply_random_seed(self._dataset, shared)
        loaded = job.states[self._number] if self._epoch < 0 and request.epoch == 0 else None
        self._start = loaded or (None, 0)
        self._go_to_start()
        self._epoch = request.epoch
        # What a dataset that is a generator tells before it begins may be of another time.
        self._first_state = copy.deepcopy(self._start[0] or self._state())

    def _go_to_start(self) -> None:
        """Go to where the epoch begins in this process."""
        job = self._job
        state, self._n_made = self._start
        self._fetcher = begin_fetching(
            job.kind, self._dataset, job.auto_collation, job.drop_last, state
        )
        if job.seed_examples:
            self._fetcher.dataset = Seeded(self._dataset)

    def _collate(self, examples: Any) -> Any:
        is_stream = self._job.kind == _DatasetKind.Iterable and self._job.auto_collation
        if is_stream and len(examples) < len(self._keys):  # the last ones
            self._n_rows = len(examples)
        if self._room and isinstance(examples, (list, tuple)) and examples:
            self._schema = schema_for(self._job.batch_converter, examples, self._room)
        if self._finds_misfits:
            return collate(self._collate_fn, examples, self._keys)
        return self._collate_fn(examples)

    def _reply(self, request: Request) -> Any:
        is_iterable = self._job.kind == _DatasetKind.Iterable
        self._keys, self._room = request.keys, request.room
        if request.seeds is not None:
            self._fetcher.dataset.begin(request.seeds)
        self._schema, self._n_rows, self._failures, self._n_examples = None, None, (), 0
        try:
            if is_iterable and self._n_made > request.number:
                # An interrupt in the main process has lost what was made.
                if lack_of(self._first_state, self._first_state["fetcher_state"]) is None:
                    self._start = self._first_state, self._start[1]
                self._go_to_start()
            while is_iterable and self._n_made < request.number:  # delivered before
                keys, (seed, *_) = [self._fetcher.dataset_iter], request.origin
                Numbered(keys, True, (seed, self._n_made, 1)).draw(next)
                self._n_made += 1
            if self._job.tolerates is None:
                batch = self._collate(self._fetched(request))
            else:
                batch = self._tolerant(request)
        except StopIteration:
            if not is_iterable:
                raise
            self._fetcher.ended = True  # also of single examples: it is not asked again
            return Reply(None, self._state(), True)
        finally:
            n_keys = len(request.keys) if self._job.auto_collation else 1
            self._n_made += n_keys
        n_rows = n_keys if self._n_rows is None else self._n_rows
        self._n_examples = n_rows - len(self._failures)
        is_plain = self._n_rows is None and not self._failures and not isinstance(batch, Reply)
        if request.wants_state or request.room or not is_plain:
            state = self._state() if request.wants_state else None
            return Reply(batch, state, False, self._schema, self._n_rows, self._failures)
        return batch

    def _fetched(self, request: Request) -> Any:
        is_batch = self._job.auto_collation
        return Numbered(request.keys, is_batch, request.origin).fetch(self._fetcher)

    def _tolerant(self, request: Request) -> Any:
        """The batch of the keys that do not fail; or their examples, if others do."""
        is_batch = self._job.auto_collation
        numbered = Numbered(request.keys, is_batch, request.origin)
        examples, failed = numbered.tolerant(self._fetcher.dataset)
        keys = numbered.keys
        if not failed:
            return self._collate(examples if is_batch else examples[0])
        self._failures = tuple((place, dump(error)) for place, error in failed)
        if self._job.tolerates == "ask" or not examples:
            return examples
        self._keys = [key for place, key in enumerate(keys) if place not in dict(failed)]
        try:
            return self._collate(examples)
        except Exception as error:
            return self._wrapped(error)

    def _state(self) -> dict[str, Any]:
        return state_of(self._number, self._job.kind, self._fetcher, self._dataset, False)
