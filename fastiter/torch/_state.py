"""The states of datasets, samplers and their iterators, and the layout of a loader's state.

The layout is that of torchdata's ``StatefulDataLoader``, with one more entry for the generator.
"""

from __future__ import annotations

import binascii
import copy
import traceback
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    _DatasetKind,
)

from fastiter._fetch.dataset_access import is_stateful, offered
from fastiter._plan.state import SkipState

#: Entries of an iteration's state that hold states of generators.
_GENERATORS = ("_generator_states", "_key_states")


class LastIteration:
    """Facts that a loader keeps of its last iteration."""

    def __init__(self, skips: SkipState | None = None) -> None:
        self.skips = skips  # of all iterations
        self.iterator: weakref.ref[Any] | None = None
        self.state: dict[str, Any] | None = None  # where the iteration was left
        self.indices: Any = None  # of the batch delivered last
        self.valid: torch.Tensor | None = None


_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


class NotSaved(NamedTuple):
    """In place of the state of an object whose ``state_dict()`` has failed. The loop goes on: only
    a call of the loader's ``state_dict()`` raises."""

    text: str


def state_if_any(value: Any, is_copied: bool = True) -> Any:
    """The state of an object that has one, or `NotSaved`; else None. A copy, since the object may
    go on to change what it has given; a pickle that is made at once needs none."""
    if not is_stateful(value):
        return None
    try:
        state = value.state_dict()
        return copied(state) if is_copied else state
    except Exception:
        return NotSaved(f"state_dict() of {type(value).__name__} failed\n{traceback.format_exc()}")


def copied(state: Any) -> Any:
    """A deep copy, of plain data in a small part of the time of `copy.deepcopy`."""
    kind = type(state)
    if kind is dict:
        return {key: copied(value) for key, value in state.items()}
    if kind is list or kind is tuple:
        return kind(state if _PLAIN.issuperset(map(type, state)) else map(copied, state))
    return state if kind in _PLAIN else copy.deepcopy(state)


def lack_of(*states: dict[str, Any] | None) -> NotSaved | None:
    """The first `NotSaved` among the values."""
    values = (value for state in states for value in (state or {}).values())
    return next((value for value in values if isinstance(value, NotSaved)), None)


def refuse_lack(*states: dict[str, Any] | None) -> None:
    """Raise RuntimeError if one of the values is a `NotSaved`."""
    if (lack := lack_of(*states)) is not None:
        raise RuntimeError(lack.text)


def state_of(
    worker: int, kind: int, fetcher: Any, dataset: Any, is_copied: bool = True
) -> dict[str, Any]:
    """State from which a worker can go on."""
    fetcher_state = None
    of_dataset = dataset
    if kind == _DatasetKind.Iterable:
        fetcher_state = {
            "dataset_iter_state": state_if_any(fetcher.dataset_iter, is_copied),
            "fetcher_ended": fetcher.ended,
        }
        if fetcher.dataset_iter is dataset:
            of_dataset = None  # its state is that of the iterator
    return {
        "worker_id": worker,
        "fetcher_state": fetcher_state,
        "dataset_state": state_if_any(of_dataset, is_copied),
    }


def is_any_stateful(fetcher: Any, dataset: Any) -> bool:
    """Whether a dataset, or its iterator, has a state, even if that is None now."""
    return is_stateful(dataset) or is_stateful(getattr(fetcher, "dataset_iter", None))


def hold_state(workers: Iterable[dict[str, Any]]) -> bool:
    """Whether a result of `state_of` has a state of the dataset, or of its iterator."""
    return any(
        worker["dataset_state"] is not None
        or (worker["fetcher_state"] or {}).get("dataset_iter_state") is not None
        for worker in workers
    )


def samplers_in(*samplers: Any) -> Iterator[Any]:
    """The samplers, and those that they draw from."""
    left = [*samplers]
    while left:
        sampler = left.pop(0)
        yield sampler
        inner = (offered(sampler, name) for name in ("batch_sampler", "sampler"))
        left += [one for one in inner if one is not None and one is not sampler]


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that an iteration draws from: the loader's, and those of its samplers. None
    stands for the global generator. A sampler that is not torch's and has no such attribute may
    draw from the global one."""
    if loader._owner is not None:  # its orders and seeds follow from the seed of its sampler
        return [] if loader.generator is None else [generator_of(loader)]
    found = [generator_of(loader)]
    for sampler in samplers_in(loader._index_sampler):
        generator = offered(sampler, "generator", found[0] if is_torchs(sampler) else None)
        if generator is None:
            generator = torch.default_generator
        if isinstance(generator, torch.Generator) and all(generator is not g for g in found):
            found.append(generator)
    return found


def generator_of(loader: Any) -> torch.Generator:
    """The generator that torch's class draws from for a loader; it refuses what is none itself."""
    given = loader.generator
    return given if isinstance(given, torch.Generator) else torch.default_generator


def draws_globally(loader: Any) -> bool:
    """Whether an iteration draws from the global generator."""
    return torch.default_generator in generators_of(loader)


def epoch_of(sampler: Any) -> int | None:
    """The epoch of a sampler with ``set_epoch``, as torch's `DistributedSampler` is; else None."""
    epoch = offered(sampler, "epoch")
    return epoch if callable(offered(sampler, "set_epoch")) and type(epoch) is int else None


def states_of(generators: list[torch.Generator]) -> list[torch.Tensor | str]:
    """The states of generators. `packed` makes texts of them, which takes longer than all else
    that begins an epoch: only where a program asks for a state."""
    return [generator.get_state() for generator in generators]


def set_states(generators: list[torch.Generator], states: list[torch.Tensor | str]) -> None:
    """Set generators back to what `states_of` gave, or to such texts."""
    for generator, state in zip(generators, states, strict=False):
        generator.set_state(unpacked(state) if isinstance(state, str) else state)


def packed(state: dict[str, Any]) -> dict[str, Any]:
    """The state of an iteration with the states of its generators as texts, which JSON takes."""
    if "_snapshot" in state:
        snapshot = state["_snapshot"]
        main = packed(snapshot["_main_snapshot"])
        return {**state, "_snapshot": {**snapshot, "_main_snapshot": main}}
    found = {name: state.get(name) for name in _GENERATORS}
    return {**state, **{name: [*map(_packed, one)] for name, one in found.items() if one}}


def _packed(state: torch.Tensor | str) -> str:
    if isinstance(state, str):
        return state
    # First bytes of all words, then second ones, ...: half of torch's state is zeros.
    raw = state.numpy().tobytes()
    planes = b"".join(raw[place::8] for place in range(8))
    return binascii.b2a_base64(zlib.compress(planes, 1), newline=False).decode()


def unpacked(text: str) -> torch.Tensor:
    """The state that `packed` has made a text of; ValueError if it is none."""
    try:
        planes = zlib.decompress(binascii.a2b_base64(text))
    except (TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"no state of a generator: {error} ({text!r:.60})") from error
    raw, start = bytearray(len(planes)), 0
    for place in range(8):
        size = len(range(place, len(raw), 8))
        raw[place::8] = planes[start : start + size]
        start += size
    return torch.frombuffer(raw, dtype=torch.uint8)


def own_rank() -> int:
    """Number of this process among those that train together."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def program_state(is_drawn_from: bool) -> dict[str, Any]:
    """The program's part of a state: its generator's state, if the loader draws from it."""
    states = states_of([torch.default_generator] if is_drawn_from else [])
    return {
        "_global_state": [*map(_packed, states)],
        "_rank": own_rank() if is_drawn_from else 0,
    }


def unbegun_state(loader: Any) -> dict[str, Any]:
    """The state before the first iteration, without a dataset's own state."""
    main = {"_index_sampler_state": state_if_any(drawn_from(loader._index_sampler))}
    refuse_lack(main)
    own = [*map(_packed, states_of(_own_generators(loader)))]
    return {"_unbegun_states": own, **main, **program_state(draws_globally(loader))}


def _own_generators(loader: Any) -> list[torch.Generator]:
    return [one for one in generators_of(loader) if one is not torch.default_generator]


def load_program_state(loader: Any, state: dict[str, Any]) -> None:
    """Set the global generator back, if the loader draws from it; and those of its samplers, if the
    iteration had not begun. Another rank's random numbers are not this one's."""
    if draws_globally(loader) and state["_rank"] == own_rank():
        set_states([torch.default_generator], state["_global_state"])
    if "_unbegun_states" in state:
        set_states(_own_generators(loader), state["_unbegun_states"])
        if state["_index_sampler_state"] is not None:
            drawn_from(loader._index_sampler).load_state_dict(state["_index_sampler_state"])


# ---- samplers ------------------------------------------------------------------------------------


def drawn_from(sampler: Any) -> Any:
    """The sampler whose keys are counted: the sampler of a torch `BatchSampler`, or any other
    sampler itself."""
    return sampler.sampler if is_own(sampler, BatchSampler) else sampler


def is_own(sampler: Any, kind: type[Any]) -> bool:
    """Whether a sampler is of just this class of torch, and its `__iter__` was not replaced."""
    names = offered(kind.__iter__, "__globals__", {}) if type(sampler) is kind else {}
    return bool(names.get("__name__") == kind.__module__)


def is_torchs(sampler: Any) -> bool:
    return type(sampler).__module__.startswith("torch.utils.data")


def may_change_data(sampler: Any, generators: list[torch.Generator]) -> bool:
    """Whether drawing keys may change what workers have: a sampler of the program's may change the
    dataset, which may also have one of the generators. Workers seed torch's global one anew."""
    kinds = SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
    is_torchs_own = any(is_own(drawn_from(sampler), kind) for kind in (*kinds, DistributedSampler))
    return not is_torchs_own or any(one is not torch.default_generator for one in generators)


def is_permutation(sampler: Any) -> bool:
    """Whether a sampler of torch's gives each example once, shuffled."""
    return is_own(sampler, RandomSampler) and not sampler.replacement


def length_of(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:
        return None


#: Entries that a state with fastiter's sampler has only if they are not these.
DEFAULTS: dict[str, Any] = {
    "_IterableDataset_len_called": None,
    "_shared_seed": None,
    "_generator_states": [],
    "_key_states": None,
    "_has_begun": True,
    "_sampler_epoch": None,
    "_base_seed": None,
    "_is_reset": False,
    "_opens_again": False,
    "_example_seed": None,
}


def no_state(error: Exception) -> ValueError:
    """The error of a state that cannot be read."""
    return ValueError(
        "state_dict is not the state of a DataLoader of this version: "
        f"{type(error).__name__}: {error}"
    )


class Resume(NamedTuple):
    """A loaded state, whichever way to fetch has saved it."""

    n_yielded: int  #: batches delivered in the epoch
    main: dict[str, Any]  #: where the sampler was
    workers: list[dict[str, Any]]  #: results of `state_of` for each worker; one without workers
    n_workers: int
    last_worker: int  #: that made the last batch
    n_more: int  #: batches delivered after the state of the workers was taken
    n_more_keys: int  #: in these
    is_finished: bool
    epoch: int = 0  #: number of the iteration

    @classmethod
    def of(cls, state: dict[str, Any]) -> Resume:
        """Read what `state_dict` has returned; ValueError if it is no state of such a loader."""
        try:
            _ = state["_rank"], state["_global_state"]
            is_finished = state["_iterator_finished"]
            epoch = int(state.get("_epoch", 0))
            if "_snapshot" not in state:
                worker = {key: state[key] for key in ("fetcher_state", "dataset_state")}
                _ = state["_keys_yielded"]
                main = {**DEFAULTS, **state}
                return cls(state["_num_yielded"], main, [worker], 0, 0, 0, 0, is_finished, epoch)
            snapshot = state["_snapshot"]
            main = {**DEFAULTS, **snapshot["_main_snapshot"]}
            n_workers, _ = main["_num_workers"], main["_keys_yielded"]
            found = snapshot["_worker_snapshots"]
            none = {"fetcher_state": None, "dataset_state": None}
            return cls(
                snapshot["_snapshot_step"],
                main,
                [found[f"worker_{number}"] if found else none for number in range(n_workers)],
                n_workers,
                snapshot["_last_yielded_worker_id"],
                state["_steps_since_snapshot"],
                state["_keys_since_snapshot"],
                is_finished,
                epoch,
            )
        except (KeyError, TypeError) as error:
            raise no_state(error) from error

    def check(self) -> None:
        """Raise RuntimeError if a sampler or a dataset has given no state."""
        refuse_lack(self.main, *self.workers, *(one["fetcher_state"] for one in self.workers))

    @property
    def has_worker_state(self) -> bool:
        """Whether a dataset, or its iterator, has a state of its own."""
        return hold_state(self.workers)

    def keys_by_worker(self, n_workers: int) -> list[int]:
        """Number of keys that each worker has had in the epoch."""
        if self.n_workers != n_workers:  # of one worker, or of none
            return [self.main["_keys_yielded"], *[0] * (n_workers - 1)]
        return list(self.main.get("_keys_by_worker", [0] * n_workers))

    def of_worker(self, number: int) -> dict[str, Any] | None:
        """The state that a worker goes on from, or None."""
        return self.workers[number] if self.has_worker_state else None


def check_missing(saved: Any, batch_size: int | None) -> None:
    """Refuse to load missing batches, of this size, where there are no batches."""
    if batch_size is None and saved not in (None, 1):
        raise ValueError(
            f"batches of {saved} are missing in state_dict: load it with a batch_size, not with "
            "batch_size=None"
        )


def _unchanged(examples: Any) -> Any:
    return examples


def begin_fetching(
    kind: int, dataset: Any, auto_collation: bool, drop_last: bool, state: dict[str, Any] | None
) -> Any:
    """Make torch's fetcher of a dataset, and have it go on from ``state``. It gives examples."""
    fetcher = _fetcher_at(kind, dataset, auto_collation, drop_last, state)
    # A generator takes its loaded place as it begins: now, not as the next epoch's.
    if getattr(fetcher, "ended", False) and next(fetcher.dataset_iter, fetcher) is not fetcher:
        fetcher = _fetcher_at(kind, dataset, auto_collation, drop_last, state)  # has begun anew
    return fetcher


def _fetcher_at(
    kind: int, dataset: Any, auto_collation: bool, drop_last: bool, state: dict[str, Any] | None
) -> Any:
    """The fetcher, where a state says.

    With the collate function the fetcher would be part of a reference cycle, and a generator of
    the dataset would not end when its loop or worker does.
    """
    state = copy.deepcopy(state)  # a dataset may keep a part of it, and change that
    if state is not None and state["dataset_state"] is not None and is_stateful(dataset):
        dataset.load_state_dict(state["dataset_state"])
    fetcher = _DatasetKind.create_fetcher(kind, dataset, auto_collation, _unchanged, drop_last)
    of_fetcher = None if state is None else state["fetcher_state"]
    if of_fetcher is not None:
        if of_fetcher["dataset_iter_state"] is not None:
            fetcher.dataset_iter.load_state_dict(of_fetcher["dataset_iter_state"])
        fetcher.ended = of_fetcher["fetcher_ended"]
    return fetcher
