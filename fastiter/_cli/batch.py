"""``python -m fastiter batch``: which examples the batch of a step had."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import fastiter
from fastiter._cli.profile.loading import UsageError, load
from fastiter._engine.chainer_state import as_record
from fastiter._plan.epoch_sampler import SamplerRecord
from fastiter._plan.record import loaded_cut

_WRONG = (LookupError, OSError, TypeError, UsageError, ValueError)
#: samplers whose states tell all that decides their orders
_SAMPLERS: dict[int, Any] = {
    kind.kind: kind
    for kind in (
        fastiter.ShuffleOrderSampler,
        fastiter.VirtualShuffleOrderSampler,
        fastiter.BlockShuffleOrderSampler,
    )
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("state", metavar="STATE.json", help="result of state_dict(), as JSON")
    parser.add_argument("--step", type=int, required=True, help="number of the batch, from 0")
    parser.add_argument("--rank", type=int, default=0, help="number of the rank (default: 0)")
    parser.add_argument(
        "--iterator",
        metavar="MODULE:FUNCTION",
        help="function that makes the iterator for the state; for weights, mixtures, lengths "
        "and callables, of which a state has a digest only",
    )


def run(options: argparse.Namespace) -> int:
    """Print the address as JSON."""
    try:
        with open(options.state) as file:
            try:
                state = json.load(file)
            except ValueError as error:  # of the encoding, too
                raise ValueError(f"{options.state} is no JSON: {error}") from error
        iterator = _of_state(state) if options.iterator is None else _made(options.iterator)
        iterator.load_state_dict(state)
        address = iterator.batch_at(options.step, rank=options.rank)
    except _WRONG as error:
        kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
        print(f"fastiter batch: {kind}{error}", file=sys.stderr)
        return 1
    rows = {name: getattr(address, name).tolist() for name in ("indices", "epochs", "seeds")}
    print(json.dumps({"step": address.step, "rank": address.rank, **rows}))
    return 0


def _made(name: str) -> Any:
    make = load(name, "--iterator MODULE:FUNCTION")
    if not callable(make):
        raise TypeError(f"{name} is no function, but {make!r:.80}")
    try:
        iterator = make()
    except Exception as error:
        raise ValueError(f"{name} raised {type(error).__name__}: {error}") from error
    if not hasattr(iterator, "batch_at"):
        raise TypeError(f"{name} must return an iterator of fastiter, not {iterator!r:.80}")
    return iterator


def _of_state(state: Any) -> Any:
    """An iterator of the arguments that the state tells, or a list of all ranks' states."""
    try:
        saved = as_record(state[0] if isinstance(state, list) and state else state)
    except (TypeError, ValueError) as error:
        raise ValueError("the file holds no state, as state_dict() returns it") from error
    if saved["kind"] == "sources":
        raise TypeError("batches of a StreamDataset have no numbers")
    cut = loaded_cut(saved)
    arguments = {name: cut[name] for name in ("repeat", "drop_last", "tail") if name in cut}
    n_examples, sampler = cut.get("n_examples"), None
    if n_examples is None:
        record = SamplerRecord.of(saved.get("order"))
        if record is None:
            raise ValueError(
                "the orders of this state are drawn from a generator without a seed, or by a "
                "function of the order before, so that only the run itself knows its batches: give "
                "the iterator an order_sampler with a seed, as in ShuffleOrderSampler(0)"
            )
        if record.kind not in _SAMPLERS:
            raise ValueError(
                "this state does not tell all that decides the orders: give --iterator "
                "MODULE:FUNCTION, which makes the iterator"
            )
        sampler = _SAMPLERS[record.kind](0, *cut.get("arguments", []))
        n_examples = record.n_examples
        words: Any = cut.get("seed", saved["seed"])
        sampler.seed = (words[0] % 2**64, words[1] % 2**64)
    return fastiter.SerialIterator(
        range(n_examples),  # only its length counts
        cut["batch_size"],
        rank=0,
        num_ranks=cut.get("num_ranks", 1),
        order_sampler=sampler,
        shuffle=False if sampler is None else None,
        **arguments,
    )
