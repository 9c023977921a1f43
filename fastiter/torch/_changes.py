"""Changes between the loader that has saved a state and the one that loads it: what is left of the
epoch stays the same, or is converted, or the state is refused.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    _DatasetKind,
)

from fastiter._fetch.dataset_access import epochs_of, is_stateful, keeps_rows
from fastiter._util.warn import warn_caller
from fastiter.torch._state import (
    Resume,
    check_missing,
    drawn_from,
    generators_of,
    is_own,
    is_permutation,
    is_torchs,
    length_of,
    no_state,
    samplers_in,
    unpacked,
)

_VERSION = 1
# Attributes of samplers of which no two values have the same keys.
_TORCHS_FACTS = ("replacement", "shuffle", "seed", "drop_last", "num_replicas", "batch_size")
_FACTS = ("num_replicas", "batch_size")
_SIZES = ("len(dataset)", "len(sampler)", "sampler.n")
_RANKS = "sampler.num_replicas"
_OF_ITERABLES = "torch.utils.data.dataloader._InfiniteConstantSampler"
# Facts that may change: the batches that are left are cut and made as the present loader says.
_FREE = ("version", "batch_size", "drop_last", "num_workers", "in_order")
_STATES = ("index_sampler", "sampler_iter")
# Facts about a loader whose sampler has a state of its own.
_OF_STATEFUL = ("sampler", "generator", "generators", "seed_examples", "persistent_workers")


def facts_of(
    loader: Any, counts: bool = True, generators: list[torch.Generator] | None = None
) -> dict[str, Any]:
    """Facts that decide the batches of an epoch; without ``counts`` no lengths are among them.
    ``generators`` are those of the loader, if they are known."""
    if loader._owner is not None:  # the record of its place tells the rest
        return _facts_of_orders(loader)
    sampler = drawn_from(loader._index_sampler)
    is_iterable = loader._dataset_kind == _DatasetKind.Iterable
    module = type(sampler).__module__.replace("__mp_main__", "__main__")  # in a spawned process
    given = getattr(sampler, "__dict__", {})
    is_known = is_torchs(sampler) or isinstance(sampler, DistributedSampler)
    names = _TORCHS_FACTS if is_known else _FACTS
    named = {name: given[name] for name in names if type(given.get(name)) in (bool, int)}
    source = given.get("data_source", given.get("dataset"))
    n = None if is_iterable else length_of(loader.dataset)
    n_drawn = n if source is loader.dataset else length_of(source)
    # len() of a dataset may be slow: each call of these samplers' len() is one.
    draws_all = is_own(sampler, SequentialSampler) or is_permutation(sampler)
    is_counted = draws_all and given.get("_num_samples") is None
    found = {
        "version": _VERSION,
        "sampler": f"{module}.{type(sampler).__qualname__}",
        "len(dataset)": n,
        **{f"sampler.{name}": value for name, value in named.items()},
        "len(sampler)": (n_drawn if is_counted else length_of(sampler)) if counts else None,
        **({"sampler.n": n_drawn} if is_known and source is not None else {}),
        **_facts_of_arguments(loader, loader._index_sampler),
        **({"generators": _kinds_of_generators(generators, loader)} if is_torchs(sampler) else {}),
        **loader._digest_of_values(),
    }
    return found if counts else _without(found, _SIZES)


def _facts_of_orders(loader: Any) -> dict[str, Any]:
    """The same with a sampler of fastiter's."""
    owner = loader._owner
    found = {
        "version": _VERSION,
        "sampler": f"fastiter.torch.{'Batches' if owner._cuts else 'Order'}",
        "len(dataset)": length_of(loader.dataset),
        "num_replicas": owner.num_replicas,
        **_facts_of_arguments(loader, loader),
    }
    return {name: fact for name, fact in found.items() if fact not in (None, False)}


def _facts_of_arguments(loader: Any, cutter: Any) -> dict[str, Any]:
    return {
        # torch draws a seed first where there is no generator, so that orders differ.
        "generator": None if loader.generator is None else "given",
        "seed_examples": bool(loader._own_arguments.seed_examples),
        "batch_size": cut_size(loader),
        "drop_last": bool(getattr(cutter, "drop_last", False)),
        "num_workers": loader.num_workers,
        "persistent_workers": loader.persistent_workers,
        "in_order": loader.in_order,
    }


def facts_of_none(loader: Any) -> dict[str, Any]:
    """Facts that decide the batches of an iteration of which none has been made: it may have other
    workers and cuts."""
    return {"version": _VERSION, **_without(facts_of(loader), _FREE)}


def _without(facts: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if name not in names}


def cut_size(loader: Any) -> int | None:
    """The keys of a batch, where torch's `BatchSampler` cuts them."""
    sampler = loader._index_sampler
    return int(sampler.batch_size) if is_own(sampler, BatchSampler) else None


def _kinds_of_generators(generators: list[torch.Generator] | None, loader: Any) -> str:
    found = generators_of(loader) if generators is None else generators
    return ", ".join("global" if one is torch.default_generator else "own" for one in found)


def _draws_as_workers(loader: Any) -> bool:
    """Whether a sampler draws from the loader's generator, as the workers' seed is, or from the
    global one."""
    drawn = (None, torch.default_generator, loader.generator)
    return any(
        any(sampler.generator is one for one in drawn)
        for sampler in samplers_in(loader._index_sampler)
        if hasattr(sampler, "generator")
    )


def values_of(sampler: Any) -> tuple[str, Any] | None:
    """Name and value of what a sampler of torch's draws from, if that is an array or a list."""
    if type(sampler) is WeightedRandomSampler:
        return "weights", sampler.weights
    return ("indices", sampler.indices) if type(sampler) is SubsetRandomSampler else None


def digest_of(values: Any) -> str:
    """A text that tells weights or indices apart."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    try:
        array = np.ascontiguousarray(values)
    except ValueError:  # keys of different lengths
        array = np.array(None)
    if array.dtype.hasobject:  # keys of any type
        array = np.frombuffer(repr([*values]).encode(), np.uint8)
    kind = array.dtype.str.encode()
    return hashlib.blake2b(array.view(np.uint8).data, digest_size=8, person=kind).hexdigest()


def converted(state: Any, loader: Any, strict: bool, is_again: bool = False) -> dict[str, Any]:
    """A copy of a state, from which a loader can go on. Nothing else changes.

    ``strict``: whether a change is refused that only later epochs depend on. ``is_again``: this
    function has returned the state; the dataset or the loader may have changed since. ValueError
    if it is no such state, or it cannot be told which examples are left.
    """
    try:
        state = copy.deepcopy(state)
        for text in (*state["_global_state"], *state.get("_unbegun_states", ())):
            unpacked(text)
        _ = state["_rank"]
        main = state["_snapshot"]["_main_snapshot"] if "_snapshot" in state else state
        resume = None if "_unbegun_states" in state else Resume.of(state)
    except (KeyError, TypeError, AttributeError) as error:
        raise no_state(error) from error
    facts = state.get("_facts") or {}
    is_old = "version" not in facts
    if strict and is_old:
        warn_caller(
            UserWarning(
                "state_dict was saved by an earlier version of fastiter, and cannot be compared: "
                "it does not tell all that its batches depend on. Dataset, sampler and arguments "
                "have to be those of the loader that has saved it; strict=False says that they are"
            )
        )
    sampler = drawn_from(loader._index_sampler)
    # Others' samplers may take long to count their keys; the epoch of a dataset is set later.
    has_epochs = epochs_of(loader.dataset) is not None
    now = facts_of(loader, has_epochs or is_torchs(sampler) if is_again else not has_epochs)
    saved = {**now, **facts} if is_old else facts
    now = {**now, **{name: saved[name] for name in _SIZES if name in saved and name not in now}}
    if resume is not None and loader._owner is None and "_order" not in main:
        _count(state, main, resume)
        resume = Resume.of(state)
    names = [name for name in {**now, **saved} if saved.get(name) != now.get(name)]
    free = _FREE if loader._owner is None else (*_FREE, "len(dataset)", "num_replicas")
    names = [name for name in names if name not in free]
    is_plain = resume is None or not resume.has_worker_state
    has_state = any(main.get(f"_{name}_state") is not None for name in _STATES)
    if has_state and not isinstance(sampler, DistributedSampler):
        of_dataset = () if is_plain else ("len(dataset)",)
        names = [name for name in names if name in (*_OF_STATEFUL, *of_dataset)]
    if not strict or not _draws_as_workers(loader):
        names = [name for name in names if name != "persistent_workers"]
    may_grow = is_plain and not has_state and _has_grown(loader, saved, now)
    taken: dict[str, Any] = {}
    if not strict and may_grow:
        names = [name for name in names if name not in _SIZES]
        if resume is not None:
            n = facts.get("sampler.n", saved["len(dataset)"])
            taken = {"_epoch_length": main.get("_epoch_length", n)}
    elif _RANKS in names and type(sampler) is DistributedSampler and is_plain and not has_epochs:
        names = [name for name in names if name not in (_RANKS, "len(sampler)")]
        if not names and resume is not None:
            taken = _dealt_again(resume, saved, now)
    if names:
        raise _refusal(names[0], saved, now, may_grow)
    if resume is not None:
        if loader._owner is None:
            _check_cuts(resume, cut_size(loader), sampler)
        elif resume.n_more:
            _check_same_cuts(resume, saved, now)
        _check_workers(resume, loader)
    main.update(taken)
    return {**state, "_facts": {**saved, **_without(now, free)}}


def _refusal(name: str, saved: dict[str, Any], now: dict[str, Any], may_grow: bool) -> ValueError:
    told = f"state_dict was saved with {name} = {saved.get(name)!r}, which is now {now.get(name)!r}"
    if name == "persistent_workers":
        return ValueError(
            f"{told}: torch draws a seed of the workers in each epoch, or in the first one alone, "
            f"so later epochs have another order; pass persistent_workers={saved[name]}, or "
            "strict=False: what is left of this epoch stays the same"
        )
    kinds = [facts.get("sampler") == _OF_ITERABLES for facts in (saved, now)]
    if kinds[0] is not kinds[1]:
        was, is_now = ("an IterableDataset" if kind else "a map-style dataset" for kind in kinds)
        return ValueError(
            f"state_dict was saved with {was}, which is now {is_now}: pass the dataset of the "
            "loader that has saved it"
        )
    whose = "dataset" if name == "len(dataset)" else "sampler"
    whose = name if name in ("generator", "seed_examples") else whose
    is_told = may_grow and name in _SIZES
    hint = ", or strict=False: later epochs then have all examples" if is_told else ""
    return ValueError(
        f"{told}: the rest of that epoch cannot be told; pass the {whose} of the loader that has "
        f"saved it{hint}"
    )


def _has_grown(loader: Any, saved: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a sampler of each example once has more of them, behind those that it had."""
    sampler = drawn_from(loader._index_sampler)
    if not (is_own(sampler, SequentialSampler) or is_permutation(sampler)):
        return False
    of_dataset, n_keys, n = ((saved.get(name) or 0, now.get(name) or 0) for name in _SIZES)
    is_all = n_keys == n or n_keys[0] == n_keys[1]  # or num_samples, which has not changed
    return (
        is_all
        and n[0] <= n[1]
        and of_dataset[0] <= of_dataset[1]
        and (n, of_dataset) != (n[::-1], of_dataset[::-1])
        and not is_stateful(loader.dataset)
        and keeps_rows(loader.dataset)
    )


def _dealt_again(resume: Resume, saved: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The place of a rank where another number of ranks goes on: what was left in the order of all
    ranks is dealt to them in turns."""
    main, before, ranks = resume.main, saved[_RANKS], now[_RANKS]
    told = f"state_dict was saved with {_RANKS} = {before}, which is now {ranks}"
    if now["seed_examples"]:
        raise ValueError(
            f"{told}: with seed_examples=True each rank has a seed of its own; pass "
            f"num_replicas={before}"
        )
    if main["_not_delivered"] and not resume.is_finished:
        raise ValueError(
            f"{told}: by in_order=False, batches of one rank are missing in it, and others of "
            f"another rank; pass num_replicas={before}"
        )
    n, (place, own) = now["sampler.n"], main.get("_dealt", (0, 0))
    place = n if resume.is_finished else min(n, place + (main["_keys_yielded"] - own) * before)
    share = (n - place) // ranks if now["sampler.drop_last"] else -(-(n - place) // ranks)
    number, own = main["_sampler_iter_yielded"], now["len(sampler)"] - share
    return {
        "_dealt": [place, own],
        "_keys_yielded": own,
        "_delivered_up_to": [number, own],
        "_not_delivered": [],
        "_cuts": [number, own],
    }


def _check_cuts(resume: Resume, size: int | None, sampler: Any) -> None:
    """Refuse another batch size where batches have to be made as they were."""
    main = resume.main
    if main["_not_delivered"]:
        check_missing(main["_batch_size"], size)
    n, n_keys = resume.n_more, resume.n_more_keys
    n_short = n * (size or 1) - n_keys
    is_end = n_short and main["_keys_yielded"] + n_keys == length_of(sampler)
    if n_short and not (is_end and 0 <= n_short < (size or 1)):
        raise ValueError(
            f"{n} batches since the last snapshot must be fetched again, and had {n_keys} keys, "
            f"but batch_size is {size} now: pass the batch_size of the loader that has saved the "
            "state, or snapshot_every_n_steps=1 where it is saved"
        )


def _check_same_cuts(resume: Resume, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse other cuts by a sampler of fastiter's where batches have to be made as they were."""
    for name in ("batch_size", "num_replicas", "len(dataset)"):
        if saved.get(name) != now.get(name):
            raise ValueError(
                f"{resume.n_more} batches since the last snapshot must be fetched again, as they "
                f"were with {name} = {saved.get(name)!r}, not {now.get(name)!r}: pass that of the "
                "loader that has saved the state, or snapshot_every_n_steps=1 where it is saved"
            )


class _OtherWorkersError(ValueError, AssertionError):
    """The latter is the class that torchdata's loader raises."""


def _check_workers(resume: Resume, loader: Any) -> None:
    """Refuse another number of workers where each has a part, or a state, of its own."""
    before, now = resume.n_workers, loader.num_workers
    if before == now:
        return
    if resume.has_worker_state:
        raise _OtherWorkersError(
            f"state_dict holds a state of the dataset for each of {before} workers, but "
            f"num_workers is {now}: pass num_workers={before}"
        )
    is_iterable = loader._dataset_kind == _DatasetKind.Iterable
    if is_iterable and resume.n_yielded and {before, now} != {0, 1}:
        raise _OtherWorkersError(
            f"state_dict was saved with {before} workers, but num_workers is {now}: each worker's "
            f"part of an IterableDataset depends on this number; pass num_workers={before}"
        )


def _count(state: dict[str, Any], main: dict[str, Any], resume: Resume) -> None:
    """Count the keys of the delivered batches, if a client has changed the number of batches."""
    n_yielded, before = main.get("_counted", (resume.n_yielded, main["_sampler_iter_yielded"]))
    n_more = main["_sampler_iter_yielded"] - before or resume.n_yielded - n_yielded
    if not n_more or resume.is_finished:
        return
    number, (first, n_keys) = before + n_more, main.get("_cuts", (0, 0))
    missing = main["_not_delivered"] or main["_delivered_up_to"][0] != before
    size, own = main["_batch_size"] or 1, main["_index_sampler_state"]
    # Accelerate lowers this entry of a sampler's state, too.
    held = (own is not None and "samples_yielded" not in own) or resume.has_worker_state
    if missing or held or number < first:
        why = "dataset or sampler has a state of its own"
        if missing or not held:
            cut = f"its batches were cut otherwise before batch {first}"
            why = "batches are missing in it" if missing else cut
        raise ValueError(
            f"state_dict counts {number} batches, but {before} when it was saved: where it goes on "
            f"cannot be told, since {why}"
        )
    n_keys += (number - first) * size
    if resume.n_workers:
        made, last = resume.keys_by_worker(resume.n_workers), resume.last_worker
        step = 1 if n_more > 0 else -1
        for _ in range(abs(n_more)):
            changed = (last + 1) % len(made) if n_more > 0 else last
            made[changed] += step * size
            last = (last + step) % len(made)
        main["_keys_by_worker"] = made
        state["_snapshot"].update(_last_yielded_worker_id=last)
    main.update(
        _sampler_iter_yielded=number,
        _keys_yielded=n_keys,
        _delivered_up_to=[number, n_keys],
        _counted=[resume.n_yielded, number],
    )
