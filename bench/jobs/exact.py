"""``python -m bench.jobs.exact``: what may change within a run whose rows stay the same.

It compares fastiter with its peers, as far as these are installed, and prints a table of
docs/guide/reproducibility.md. In each cell a run is interrupted after some steps, goes on from its
state with something changed, and is compared with an uninterrupted run of the same library: the
rows of all steps and ranks, one after another.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import logging
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

N, BEFORE, AFTER = 240, 5, 4
SHARDS = list(range(8))
LIMIT = 100  # seconds of a cell


class Settings(NamedTuple):
    """Settings of a part of a run."""

    workers: int = 2
    prefetch: int = 2
    context: str = "fork"
    ranks: int = 1
    batch_size: int = 8


CHANGES = {
    "nothing": Settings(),
    "workers": Settings(workers=1),
    "no workers": Settings(workers=0),
    "prefetch": Settings(prefetch=4),
    "start method": Settings(context="spawn"),
    "batch size": Settings(batch_size=12),
    "ranks": Settings(ranks=2),
}
KINDS = (
    *("map", "map, shuffle=True", "map, DistributedSampler", "global random numbers", "mixture"),
    *("length buckets", "filtered", "stream", "IterableDataset"),
)


class Missing(Exception):
    """The library has no such kind, or no such setting."""


class Rows:
    """A dataset of indices, and random numbers of the global generators if asked for."""

    def __init__(self, size: int = N, first: int = 0, draws: bool = False) -> None:
        self.size, self.first, self.draws = size, first, draws

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        index = self.first + int(index)
        return (index, random.random()) if self.draws else index


class Broken(Rows):
    def __getitem__(self, index: int) -> Any:
        if index % 7 == 3:
            raise ValueError(index)
        return index


def keeps(index: Any) -> bool:
    return int(index) % 7 != 3


def draw(index: Any) -> Any:
    return int(index), random.random()


def shard_rows(shard: int) -> list[int]:
    return [100 * shard + i for i in range(30)]


def as_list(batch: Any) -> list[Any]:
    return list(batch)


#: makes iterators of all ranks, from a state: each gives batches, and has a function for its state
Made = list[tuple[Iterator[Any], Callable[[], Any]]]


def _own_data(kind: str, how: Settings, sampler: str) -> tuple[Any, dict[str, Any]]:
    """The dataset and the arguments of a kind, for iterators or loaders of fastiter; ``sampler`` is
    the argument for an order."""
    from fastiter import LengthBucketBatchSampler, MixtureOrderSampler, ShuffleOrderSampler
    from fastiter.datasets import ConcatenatedDataset, StreamDataset

    size: dict[str, Any] = {"batch_size": how.batch_size}
    shuffled = {**size, sampler: ShuffleOrderSampler(0)}
    kinds = {
        "map": lambda: (Rows(), shuffled),
        "global random numbers": lambda: (Rows(draws=True), {**shuffled, "seed_examples": True}),
        "mixture": lambda: (
            ConcatenatedDataset(Rows(160), Rows(80, 1000)),
            {**size, sampler: MixtureOrderSampler([160, 80], [0.7, 0.3], 0)},
        ),
        "length buckets": lambda: (
            Rows(),
            {
                "batch_sampler": LengthBucketBatchSampler(
                    np.arange(N) % 50 + 1, batch_size=how.batch_size, seed=0
                )
            },
        ),
        "filtered": lambda: (Broken(), {**shuffled, "on_error": "skip", "skip_limit": None}),
        "stream": lambda: (
            StreamDataset(SHARDS, shard_rows, seed=0, interleave=4, window=50),
            size,
        ),
    }
    if kind not in kinds:
        raise Missing(kind)
    return kinds[kind]()


def of_fastiter(kind: str, how: Settings, state: Any) -> Made:
    from fastiter import MultiprocessIterator, SerialIterator

    dataset, given = _own_data(kind, how, "order_sampler")
    made: Made = []
    for rank in range(how.ranks):
        given_ = {**given, "rank": rank, "num_ranks": how.ranks}
        if how.workers:
            iterator: Any = MultiprocessIterator(
                dataset,
                n_processes=how.workers,
                n_prefetch=how.prefetch,
                context=how.context,
                **given_,
            )
        else:
            iterator = SerialIterator(dataset, **given_)
        if state is not None:
            iterator.load_state_dict(state)
        made.append((iterator, iterator.state_dict))
    return made


def shard_stream() -> Any:
    """A stream of torch's whose workers take shards in turn, with a state of its own."""
    from torch.utils.data import IterableDataset, get_worker_info

    class ShardStream(IterableDataset[int]):
        n_given = 0

        def __reduce__(self) -> Any:
            return shard_stream, ()

        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            shards = SHARDS if info is None else SHARDS[info.id :: info.num_workers]
            rows = itertools.chain.from_iterable(map(shard_rows, shards))
            for row in itertools.islice(rows, self.n_given, None):
                self.n_given += 1
                yield row
            self.n_given = 0

        def state_dict(self) -> dict[str, int]:
            return {"n_given": self.n_given}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.n_given = state["n_given"]

    return ShardStream()


def of_fastiter_torch(kind: str, how: Settings, state: Any) -> Made:
    if importlib.util.find_spec("torch") is None:
        raise Missing("torch")
    from fastiter.torch import DataLoader

    if kind in OF_TORCH and kind != "global random numbers":
        return _torch_loaders(DataLoader, kind, how, state)
    dataset, given = _own_data(kind, how, "sampler")
    made: Made = []
    for rank in range(how.ranks):
        loader = DataLoader(
            dataset,
            num_workers=how.workers,
            collate_fn=as_list,
            rank=rank,
            num_replicas=how.ranks,
            **(_of_workers(how) if how.workers else {}),
            **given,
        )
        if state is not None:
            loader.load_state_dict(state)
        made.append((iter(loader), loader.state_dict))
    return made


def _of_workers(how: Settings) -> dict[str, Any]:
    return {"prefetch_factor": how.prefetch, "multiprocessing_context": how.context}


def of_torchdata(kind: str, how: Settings, state: Any) -> Made:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return _torch_loaders(StatefulDataLoader, kind, how, state)


OF_TORCH = (
    *("map, shuffle=True", "map, DistributedSampler", "global random numbers", "IterableDataset"),
)


def _torch_loaders(make: Any, kind: str, how: Settings, state: Any) -> Made:
    import torch
    from torch.utils.data import DistributedSampler

    if kind not in OF_TORCH:
        raise Missing(kind)
    if kind in ("IterableDataset", "map, shuffle=True") and how.ranks > 1:
        raise Missing("ranks")  # which the dataset or a sampler would have to divide
    arguments = _of_workers(how) if how.workers else {}
    made: Made = []
    for rank in range(how.ranks):
        torch.manual_seed(0)
        random.seed(0)
        dataset, sampler = shard_stream(), None
        if kind != "IterableDataset":
            dataset = Rows(draws=kind == "global random numbers")
        if kind in ("map, DistributedSampler", "global random numbers"):
            sampler = DistributedSampler(dataset, how.ranks, rank, seed=0)
        loader = make(
            dataset,
            how.batch_size,
            shuffle=kind == "map, shuffle=True" or None,
            sampler=sampler,
            num_workers=how.workers,
            collate_fn=as_list,
            **arguments,
        )
        if state is not None:
            loader.load_state_dict(state)
        made.append((iter(loader), loader.state_dict))
    return made


def of_datasets(kind: str, how: Settings, state: Any) -> Made:
    import datasets
    from datasets.distributed import split_dataset_by_node

    stream = datasets.IterableDataset.from_generator(_generate, gen_kwargs={"shards": SHARDS})
    if kind == "mixture":
        other = datasets.IterableDataset.from_generator(_generate, gen_kwargs={"shards": [50, 51]})
        stream = datasets.interleave_datasets([stream, other], probabilities=[0.7, 0.3], seed=0)
    elif kind == "filtered":
        stream = stream.filter(_keeps_row)
    elif kind != "stream":
        raise Missing(kind)
    if how._replace(ranks=1, batch_size=Settings().batch_size) != Settings():
        raise Missing("workers")  # of a loader around it
    stream = stream.shuffle(seed=0, buffer_size=50)
    made: Made = []
    for rank in range(how.ranks):
        part = stream if how.ranks == 1 else split_dataset_by_node(stream, rank, how.ranks)
        if state is not None:
            part.load_state_dict(state)
        made.append((_batches(part, how.batch_size), part.state_dict))
    return made


def _batches(rows: Any, size: int) -> Iterator[list[int]]:
    found = iter(rows)
    while batch := [row["x"] for row in itertools.islice(found, size)]:
        yield batch


def _generate(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for x in shard_rows(shard):
            yield {"x": x}


def _keeps_row(row: dict[str, int]) -> bool:
    return keeps(row["x"])


def of_grain(kind: str, how: Settings, state: Any) -> Made:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    if kind in ("length buckets", *OF_TORCH[:2], OF_TORCH[3]) or how.context != "fork":
        raise Missing(kind)  # its workers are always spawned
    options = grain.MultiprocessingOptions(
        num_workers=how.workers, per_worker_buffer_size=how.prefetch
    )
    made: Made = []
    for rank in range(how.ranks):
        source: Any = grain.MapDataset.source(range(N)).seed(0).shuffle()
        shard = grain.sharding.ShardOptions(rank, how.ranks)
        if kind == "mixture":
            other = grain.MapDataset.source(range(1000, 1080)).seed(1).shuffle()
            source = grain.MapDataset.mix([source, other], weights=[0.7, 0.3])
        elif kind == "global random numbers":
            source = source.map(draw)
        if kind in ("map", "mixture", "global random numbers"):
            iterator = grain.experimental.ElasticIterator(
                source,
                how.batch_size * how.ranks,
                shard,
                multiprocessing_options=options if how.workers else None,
            )
        else:
            if kind == "stream":
                shards = [grain.MapDataset.source(shard_rows(s)).to_iter_dataset() for s in SHARDS]
                ordered = grain.experimental.InterleaveIterDataset(
                    shards[rank :: how.ranks], cycle_length=4
                )
                rows: Any = grain.experimental.WindowShuffleIterDataset(
                    ordered, window_size=50, seed=0
                )
            else:
                rows = source[rank :: how.ranks].filter(keeps).to_iter_dataset()
            rows = rows.batch(how.batch_size, batch_fn=as_list)
            iterator = iter(rows.mp_prefetch(options) if how.workers else rows)
        if state is not None:
            iterator.set_state(state)
        made.append((iterator, iterator.get_state))
    return made


LIBRARIES: dict[str, tuple[str, Callable[[str, Settings, Any], Made]]] = {
    "fastiter": ("fastiter-loader", of_fastiter),
    "fastiter.torch.DataLoader": ("fastiter-loader", of_fastiter_torch),
    "torchdata StatefulDataLoader": ("torchdata", of_torchdata),
    "Grain": ("grain", of_grain),
    "Hugging Face datasets": ("datasets", of_datasets),
}


def _take(made: Made, rows: list[Any], steps: int) -> None:
    """Add the rows of the next steps, of all ranks."""
    for _ in range(steps):
        for batches, _ in made:
            batch = next(batches)
            rows += batch if isinstance(batch, list) else _plain(batch)


def _take_epoch(made: Made, rows: list[Any]) -> None:
    """Add the rows up to the end of the epoch, also of a run that goes on then."""
    with contextlib.suppress(StopIteration):
        while len(rows) < N:
            _take(made, rows, 1)
    del rows[N:]


def _plain(batch: Any) -> list[Any]:
    if isinstance(batch, tuple):
        return list(zip(*(part.tolist() for part in batch), strict=True))
    return list(np.asarray(batch).tolist())


def cell(make: Callable[..., Made], kind: str, change: str) -> str:
    """Whether the rows stay the same."""
    expected: list[Any] = []
    rows: list[Any] = []
    try:
        _take_epoch(make(kind, Settings(), None), expected)
        made = make(kind, Settings(), None)
        _take(made, rows, BEFORE)
        state = made[0][1]()
        del made
        made = make(kind, CHANGES[change], state)
        _take(made, rows, AFTER)
        if rows == expected[: len(rows)]:
            return "same"
        if sorted(rows) == sorted(expected[: len(rows)]):
            return "same rows"  # in another order
        _take_epoch(made, rows)
        return "each once" if sorted(rows) == sorted(expected) else "differs"
    except Missing:
        return "-"
    except (Exception, StopIteration) as error:
        print(f"{kind}, {change}: {type(error).__name__}: {error!s:.300}", file=sys.stderr)
        return "hangs" if isinstance(error, TimeoutError) else "error"


def _end(signum: int, frame: Any) -> None:
    raise TimeoutError(f"longer than {LIMIT} s")


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    logging.getLogger("fastiter").setLevel("ERROR")  # else it tells of each skipped example
    signal.signal(signal.SIGALRM, _end)
    wanted = sys.argv[1:] or list(LIBRARIES)
    print("| library | data |", " | ".join(CHANGES), "|")
    print("|---|---|" + "---|" * len(CHANGES))
    for name, (package, make) in LIBRARIES.items():
        if name.split()[0] not in wanted and name not in wanted:
            continue
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "this tree"
            if package != "fastiter-loader":
                continue
        for kind in KINDS:
            found = []
            for change in CHANGES:
                signal.alarm(LIMIT)
                found.append(cell(make, kind, change))
                signal.alarm(0)
            if {*found} != {"-"}:
                print(f"| {name} {version} | {kind} |", " | ".join(found), "|", flush=True)


if __name__ == "__main__":
    main()
