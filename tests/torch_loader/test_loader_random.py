"""Random numbers that belong to examples, in the loader: `example_rng`, and crops of images."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from photographs import photograph, saved  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    get_worker_info,
)

from fastiter import ShuffleOrderSampler  # noqa: E402
from fastiter.datasets import SubDataset, TransformDataset  # noqa: E402
from fastiter.random import example_rng  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

N = 22


class Draws:
    """Examples of a number of their own, and of their index."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return int(example_rng().integers(2**62)), int(i)


class Plain:
    def __len__(self):
        return N

    def __getitem__(self, i):
        return i

    def __getitems__(self, indices):
        return list(indices)


def with_number(i):
    return int(example_rng().integers(2**62)), i


DATASETS = {
    "examples": Draws(),
    "batches": TransformDataset(Plain(), with_number),
    "a part": SubDataset(Draws(), 0, N),
    "a part of torch": Subset(Subset(Draws(), range(N)), range(N)),
}
LOADERS = {
    "shuffled": lambda: {"batch_size": 4, "shuffle": True},
    "without batches": lambda: {"batch_size": None},
    "with replacement": lambda: {"batch_size": 4, "sampler": RandomSampler(range(N), True, N)},
    "a batch sampler": lambda: {"batch_sampler": [[0, 1, 1], [2, 0], [0], [1, 1]]},
    "of fastiter": lambda: {"batch_size": 4, "sampler": ShuffleOrderSampler(5)},
    "seeded": lambda: {"batch_size": 4, "shuffle": True, "seed_examples": True},
    "with skips": lambda: {"batch_size": 4, "shuffle": True, "on_error": "skip"},
}


def rows_of(batches):
    """(number, index) of each example."""
    return [
        row
        for numbers, indices in batches
        for row in zip(np.ravel(numbers).tolist(), np.ravel(indices).tolist(), strict=True)
    ]


def passes(dataset, options, n_passes=2, seed=3, **more):
    torch.manual_seed(seed)
    loader = DataLoader(dataset, **options, **more)
    return [rows_of(loader) for _ in range(n_passes)]


class ManyAlone(torch.utils.data.Dataset):  # whose own __getitem__ only raises
    def __len__(self):
        return N

    def __getitems__(self, indices):
        return [random.random() + i for i in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_seeds_of_examples_that_come_by_many_alone(num_workers):
    def drawn(batch_size, workers):
        torch.manual_seed(3)
        loader = DataLoader(ManyAlone(), batch_size, num_workers=workers, seed_examples=True)
        return torch.cat(list(loader)).tolist()

    assert drawn(4, num_workers) == drawn(5, 0)
    assert [int(number) for number in drawn(4, num_workers)] == list(range(N))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if short else pytest.mark.stress)
        for name in DATASETS
        for kind in LOADERS
        for short in [name == "examples" or kind == "shuffled"]
    ],
)
def test_numbers_do_not_depend_on_the_workers(name, kind):
    dataset, options = DATASETS[name], LOADERS[kind]
    expected = passes(dataset, options(), num_workers=0)
    n_workers = (1, 2, 4) if kind == "shuffled" else (2,)
    for n in n_workers:
        assert passes(dataset, options(), num_workers=n) == expected
    numbers = [number for rows in expected for number, _ in rows]
    assert len(set(numbers)) == len(numbers)  # also of an example that comes twice
    other = [number for rows in passes(dataset, options(), seed=4) for number, _ in rows]
    if kind == "of fastiter":  # whose sampler has the seed
        assert other == numbers
    else:
        assert not {*numbers} & {*other}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_numbers_do_not_depend_on_the_batches(batch_size, num_workers):
    expected = passes(Draws(), {"batch_size": 4, "shuffle": True})
    options = {"batch_size": batch_size, "shuffle": True, "num_workers": num_workers}
    assert passes(Draws(), options) == expected


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 0), *(pytest.param(*n, marks=pytest.mark.stress) for n in [(0, 2), (2, 1)])],
)
def test_numbers_are_the_same_after_a_resume(kind, before, after):
    dataset, options = Draws(), LOADERS[kind]
    expected = passes(dataset, options(), 1)[0]
    torch.manual_seed(3)
    loader = DataLoader(dataset, **options(), num_workers=before)
    batches = iter(loader)
    first = rows_of(next(batches) for _ in range(2))
    state = loader.state_dict()
    del batches
    torch.manual_seed(5)
    loader = DataLoader(dataset, **options(), num_workers=after)
    loader.load_state_dict(state)
    assert first + rows_of(loader) == expected


def test_numbers_of_workers_that_persist_differ_between_passes():
    options = {"batch_size": 4, "num_workers": 2, "persistent_workers": True}
    first, second, third = passes(Draws(), options, 3)
    assert len({number for number, _ in first + second + third}) == 3 * N
    torch.manual_seed(3)
    loader = DataLoader(Draws(), **options)
    rows_of(loader)
    batches = iter(loader)
    rows_of(next(batches) for _ in range(2))
    state = loader.state_dict()
    del batches
    loader = DataLoader(Draws(), **options)
    loader.load_state_dict(state)
    assert rows_of(loader) == second[8:]


def test_ranks_of_one_seed_have_different_numbers():
    numbers = []
    for rank in range(2):
        sampler = DistributedSampler(range(N), 2, rank, shuffle=False)
        numbers += [n for n, _ in passes(Draws(), {"sampler": sampler, "batch_size": 4}, 1)[0]]
    assert len(set(numbers)) == N


def test_numbers_of_fastiters_sampler_are_those_of_its_epoch_and_index():
    sampler = ShuffleOrderSampler(5)
    for epoch, rows in enumerate(passes(Draws(), {"sampler": sampler, "batch_size": 4})):
        for number, index in rows:
            assert number == example_rng(5, epoch, index).integers(2**62)


def part_of_worker():
    info = get_worker_info()
    return range(N) if info is None else range(info.id, N, info.num_workers)


class Stream(IterableDataset):
    """A generator, which draws before its first example, too."""

    def __iter__(self):
        first = int(example_rng().integers(2**62))
        for i in part_of_worker():
            number, _ = with_number(i)
            assert (number == first) == (i == part_of_worker()[0])
            yield number, i


class Iterated(IterableDataset):
    """An iterator without a generator."""

    def __iter__(self):
        return map(with_number, part_of_worker())


class Stateful(IterableDataset):
    """An iterator that goes on from a state."""

    def __init__(self):
        self.n = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        if self.n > len(part_of_worker()):
            self.n = 0
            raise StopIteration
        return with_number(part_of_worker()[self.n - 1])

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


STREAMS = [Stream, Iterated, Stateful]


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize(("num_workers", "persists"), [(0, False), (1, False), (2, True)])
def test_numbers_of_a_stream_are_those_of_seed_worker_and_place(kind, num_workers, persists):
    more = {"num_workers": num_workers, "persistent_workers": persists}
    expected = passes(kind(), {"batch_size": 4}, **more)
    assert [sorted(i for _, i in rows) for rows in expected] == 2 * [[*range(N)]]
    numbers = [number for rows in expected for number, _ in rows]
    assert len(set(numbers)) == len(numbers)
    assert passes(kind(), {"batch_size": 4}, **more) == expected
    other = passes(kind(), {"batch_size": 4}, seed=4, **more)
    assert not {*numbers} & {number for rows in other for number, _ in rows}
    for options in ({"batch_size": None}, {"batch_size": 11, "drop_last": True}):
        assert sorted(passes(kind(), options, 1, **more)[0]) == sorted(expected[0])
    if num_workers == 1:
        assert passes(kind(), {"batch_size": 4}, num_workers=0)[0] == expected[0]


@pytest.mark.parametrize(
    ("kind", "before", "after", "batch_size"),
    [
        *((kind, n, n, batch_size) for kind in STREAMS for n, batch_size in [(0, None), (2, 4)]),
        *[(Stream, 0, 1, 4), (Iterated, 1, 0, None)],
    ],
)
def test_numbers_of_a_stream_are_the_same_after_a_resume(kind, before, after, batch_size):
    expected = passes(kind(), {"batch_size": batch_size}, 1, num_workers=before)[0]
    torch.manual_seed(3)
    loader = DataLoader(kind(), batch_size, num_workers=before)
    batches = iter(loader)
    first = rows_of(next(batches) for _ in range(3))
    state = loader.state_dict()
    del batches
    torch.manual_seed(5)
    loader = DataLoader(kind(), batch_size, num_workers=after)
    loader.load_state_dict(state)
    assert first + rows_of(loader) == expected


class DrawsTooEarly(IterableDataset):
    def __iter__(self):
        return iter(example_rng().random(3))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_has_no_example_before_its_iterator(num_workers):
    with pytest.raises(RuntimeError, match="example_rng"):
        next(iter(DataLoader(DrawsTooEarly(), 2, num_workers=num_workers)))


def drawing_collate(examples):
    return example_rng().random()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_function_has_no_example(num_workers):
    loader = DataLoader(Draws(), 4, collate_fn=drawing_collate, num_workers=num_workers)
    with pytest.raises(RuntimeError, match="example_rng"):
        next(iter(loader))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    pytest.importorskip("PIL")
    from fastiter.images import ImageFolder, RandomResizedCrop

    root = tmp_path_factory.mktemp("photographs")
    for label in ("a", "b"):
        (root / label).mkdir()
        for number in range(N // 2):
            (root / label / f"{number}.jpg").write_bytes(saved(photograph(40, 50, number)))
    return ImageFolder(root, RandomResizedCrop(16, flip=0.5))


def test_crops_do_not_depend_on_the_workers(images):
    def batches(num_workers):
        torch.manual_seed(1)
        loader = DataLoader(images, 4, shuffle=True, num_workers=num_workers)
        return [batch for _ in range(2) for batch in loader]

    expected = batches(0)
    assert expected[0][0].dtype == torch.uint8
    assert expected[0][1].dtype == torch.int64
    for num_workers in (1, 2, 4):
        for (x, y), (other, label) in zip(batches(num_workers), expected, strict=True):
            assert torch.equal(x, other)
            assert torch.equal(y, label)


def test_the_loader_of_torch_takes_the_dataset(images):
    loader = torch.utils.data.DataLoader(images, 4, shuffle=True, num_workers=2)
    shapes = [tuple(x.shape) for x, _ in loader]
    assert shapes == [(4, 3, 16, 16)] * 5 + [(2, 3, 16, 16)]


class Random(Draws):
    def __getitem__(self, i):
        return torch.rand(1), i


SHARED = [{"hedge": 0.05}, {"dataset_timeout": 30.0}, {"num_workers": "auto"}]


@pytest.mark.parametrize("collate_fn", [None, list, lambda rows: rows], ids=["default", "list", ""])
@pytest.mark.parametrize("batch_size", [None, 1, 3, 7])
@pytest.mark.parametrize("arguments", SHARED, ids=str)
def test_seeds_where_workers_share_rows(arguments, batch_size, collate_fn):
    """A batch of one row with seeds is no request for a whole batch."""
    if batch_size is None and collate_fn is not None:
        collate_fn = lambda row: row  # noqa: E731
    epochs = []
    for given in ({"num_workers": 0}, {"num_workers": 2, **arguments}):
        torch.manual_seed(1)
        loader = DataLoader(
            Random(), batch_size, seed_examples=True, collate_fn=collate_fn, **given
        )
        epochs.append([str(batch) for batch in loader])
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_single_keys_that_are_tensors_are_seeded(workers):
    options = {"seed_examples": True, "num_workers": workers}
    numbers = []
    for kind in (int, torch.tensor):
        torch.manual_seed(0)
        keys = [kind(i) for i in range(N)]
        dataset = TransformDataset(range(N), lambda i: torch.rand(2))
        numbers.append(torch.stack(list(DataLoader(dataset, None, sampler=keys, **options))))
    assert torch.equal(*numbers)
