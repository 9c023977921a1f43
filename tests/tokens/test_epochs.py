"""Packed rows in iterators: each epoch packed anew, states, ranks, addresses, workers."""

from __future__ import annotations

import copy
import functools
import json

import numpy as np
import pytest
from inside import planner_of

from fastiter import (
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
    cache,
    concat_examples,
)
from fastiter.datasets import (
    ConcatenatedDataset,
    DictDataset,
    SubDataset,
    TransformDataset,
    TupleDataset,
    split_dataset,
)
from fastiter.tokens import TokenDataset

RNG = np.random.default_rng(0)
DOCUMENTS = [RNG.integers(0, 1000, n) for n in RNG.integers(0, 40, 400)]
FIELDS = ("input_ids", "labels", "position_ids", "document_ids", "n_tokens")


def packed(seed=1, **options):
    given = {"packing": "bfd", "window": 64, "fields": FIELDS, **options}
    return TokenDataset(DOCUMENTS, 64, seed=seed, **given)


def expected_rows(n_epochs, **options):
    """The rows of some epochs, by a dataset that is told each."""
    dataset = packed(**options)
    for epoch in range(n_epochs):
        dataset.set_epoch(epoch)
        yield from dataset


def assert_same(batch, rows):
    assert len(batch["input_ids"]) == len(rows)
    for name in FIELDS:
        np.testing.assert_array_equal(batch[name], np.stack([row[name] for row in rows]))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SerialIterator, {}),
        (MultithreadIterator, {"n_threads": 2}),
        (MultiprocessIterator, {"n_processes": 2, "context": "fork"}),
    ],
)
@pytest.mark.parametrize("packing", ["bfd", "concat"])
def test_iterators_pack_each_epoch_anew(kind, options, packing):
    dataset = packed(packing=packing)
    rows = list(expected_rows(3, packing=packing))
    sizes = [len(dataset.__fastiter_epochs__().rows_of(epoch)) for epoch in range(3)]
    with kind(dataset, 7, converter=concat_examples, **options) as iterator:
        for start in range(0, len(rows) - 7, 7):
            assert iterator.epoch == np.searchsorted(np.cumsum(sizes), start, side="right")
            assert_same(next(iterator), rows[start : start + 7])
        read = sum(int(row["n_tokens"]) for row in rows[: start + 7])
        assert iterator.stats().tokens_read == read
    assert dataset.epoch == 0
    with kind(dataset, 7, **options) as iterator:  # examples
        example = next(iterator)[3]
        assert_same({name: [example[name]] for name in FIELDS}, [rows[3]])


def with_sum(row):
    return {**row, "sum": row["input_ids"].sum()}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SerialIterator, {}),
        (MultithreadIterator, {"n_threads": 2}),
        (MultiprocessIterator, {"n_processes": 2, "context": "fork"}),
    ],
)
def test_rows_that_are_transformed_are_packed_anew_too(kind, options):
    rows = list(expected_rows(3))
    dataset = TransformDataset(TransformDataset(packed(), dict), with_sum)
    with kind(dataset, 7, converter=concat_examples, **options) as iterator:
        for start in range(0, len(rows) - 7, 7):
            state = iterator.state_dict()
            batch = next(iterator)
            assert_same(batch, rows[start : start + 7])
            assert batch["sum"].tolist() == batch["input_ids"].sum(axis=1).tolist()
    with kind(dataset, 7, converter=concat_examples, **options) as iterator:
        iterator.load_state_dict(state)
        assert_same(next(iterator), rows[start : start + 7])


@pytest.mark.parametrize(
    "wrap",
    [
        ConcatenatedDataset,
        lambda rows: SubDataset(rows, 0, 4),
        lambda rows: split_dataset(rows, 4),
        lambda rows: TupleDataset(rows, rows),
        lambda rows: DictDataset(x=rows),
        lambda rows: cache(rows, memory=1 << 20),
    ],
    ids=["concatenated", "sub", "split", "tuple", "dict", "cache"],
)
def test_a_dataset_of_one_length_refuses_rows_of_many_epochs(wrap):
    with pytest.raises(ValueError, match=r"this TokenDataset other rows.*without seed="):
        wrap(packed())
    with pytest.raises(ValueError, match="this TransformDataset other rows"):
        wrap(TransformDataset(packed(), dict))
    wrap(packed(seed=None))


def test_a_loop_without_repeat_has_the_next_epoch_each_time():
    iterator = SerialIterator(packed(), 16, repeat=False, converter=concat_examples)
    rows = list(expected_rows(2))
    batches = [batch for _ in range(2) for batch in iterator]
    for name in FIELDS:
        found = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(found, np.stack([row[name] for row in rows]))


def on_rank(sampler, rank, ranks, state=None):
    iterator = SerialIterator(
        packed(),
        4,
        order_sampler=sampler,
        rank=rank,
        num_ranks=ranks,
        converter=concat_examples,
    )
    if state is not None:
        iterator.load_state_dict(state)
    return iterator


def rows_of_all(n_rows, ranks, iterators):
    batches = [
        np.stack([next(iterator)["input_ids"] for iterator in iterators])
        for _ in range(n_rows // (4 * ranks))
    ]
    return np.concatenate(batches).reshape(-1, 64)


@functools.cache
def uninterrupted(sampler):
    return rows_of_all(1200, 1, [on_rank(sampler, 0, 1)])


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("loads", [1, 2, 3])
@pytest.mark.parametrize("sampler", [None, ShuffleOrderSampler(5)])
def test_a_state_goes_on_with_the_same_rows_on_any_number_of_ranks(num_ranks, loads, sampler):
    whole = uninterrupted(sampler)
    size = len(packed())
    for cut in (3, (size // (4 * num_ranks)), 40):
        iterators = [on_rank(sampler, rank, num_ranks) for rank in range(num_ranks)]
        before = rows_of_all(cut * 4 * num_ranks, num_ranks, iterators)
        text = json.dumps(iterators[0].state_dict())
        assert len(text) <= 512
        after = rows_of_all(
            240, loads, [on_rank(sampler, rank, loads, json.loads(text)) for rank in range(loads)]
        )
        joined = np.concatenate([before, after])
        np.testing.assert_array_equal(joined, whole[: len(joined)])


@pytest.mark.parametrize("packing", ["bfd", "concat"])
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.slow
def test_a_resume_plans_the_window_of_its_position_alone(packing, num_ranks):
    far = SerialIterator(packed(packing=packing), 2, converter=concat_examples)
    for _ in range(60):
        next(far)
        state = json.loads(json.dumps(far.state_dict()))
        ahead = copy.copy(far)
        rows = [next(ahead)["input_ids"], next(ahead)["input_ids"]]
        position = state["position"]
        known = packed(packing=packing).__fastiter_epochs__().rows_of(state["epoch"])
        if position + 4 < len(known):
            windows = {known.window_of(row)[0] for row in (position, position + 4)}
            for rank in range(num_ranks):
                dataset = packed(packing=packing)  # which has planned no window
                iterator = SerialIterator(
                    dataset, 2, rank=rank, num_ranks=num_ranks, converter=concat_examples
                )
                before = planner_of(dataset).n_planned
                iterator.load_state_dict(state)
                np.testing.assert_array_equal(next(iterator)["input_ids"], rows[rank])
                assert iterator.epoch_detail > state["epoch"]
                assert iterator.address.indices[0] == position + 2 * rank
                assert planner_of(dataset).n_planned - before <= len(windows) + (num_ranks - 1)
                assert len(iterator) > 0


def test_ranks_whose_missing_batches_lie_in_other_windows():
    """The states of all ranks load, each at a window of its own."""
    states, delivered = [], []
    for rank, step in enumerate((2, 9)):
        iterator = SerialIterator(packed(), 4, shuffle=False, rank=rank, num_ranks=2)
        for k in range(11):
            if k == step:  # this batch is missing, and the next one is not
                states.append({**iterator.state_dict(), "missing": {"delivered": 2}})
            batch = next(iterator)
            delivered += [batch] if k in {*range(step), step + 1} else []
    assert len({tuple(state["cut"]["window"]) for state in states}) == 2
    iterator = SerialIterator(packed(), 4, shuffle=False)
    iterator.load_state_dict(states)
    batches = [*delivered, *(next(iterator) for _ in range(22 - len(delivered)))]
    rows = list(expected_rows(1))[: 4 * 22]
    found = [row["input_ids"].tolist() for batch in batches for row in batch]
    assert sorted(found) == sorted(row["input_ids"].tolist() for row in rows)


def test_an_index_of_another_process_is_of_one_window():
    known = packed().__fastiter_epochs__().rows_of(3)
    index = int(known.indices(len(known) - 1, len(known))[0])
    expected = packed()
    expected.set_epoch(3)
    dataset = packed()
    row = dataset.__getitems__([index])[0]
    assert_same({name: [row[name]] for name in FIELDS}, [expected[len(expected) - 1]])
    assert planner_of(dataset).n_planned == 1


def test_rows_are_found_behind_windows_without_rows_that_were_not_counted():
    documents = [[], [1, 2], [3, 4], [5, 6]]
    known = TokenDataset(documents, 2, packing="bfd", window=1, seed=0)
    number = next(e for e in range(99) if planner_of(known).documents(e, 0)[0] == 0)
    rows = np.arange(3)
    expected = planner_of(known).rows_of(number).named(rows)
    loaded = planner_of(TokenDataset(documents, 2, packing="bfd", window=1, seed=0)).rows_of(number)
    loaded.begin(1, 0)
    np.testing.assert_array_equal(loaded.named(rows), expected)


def test_a_state_whose_window_is_wrong_is_refused():
    iterator = SerialIterator(packed(), 4)
    for _ in range(20):
        next(iterator)
    state = iterator.state_dict()
    for window in ([1, 10**6], [-1, 0], [1], "no", None):
        with pytest.raises(ValueError, match="'cut' cannot be read"):
            SerialIterator(packed(), 4).load_state_dict(
                {**state, "cut": {**state["cut"], "window": window}}
            )


def test_addresses_and_seek():
    iterator = SerialIterator(packed(), 5, converter=concat_examples, skip_steps=[(2, 4)])
    far = SerialIterator(packed(), 5, converter=concat_examples)
    batches = {}
    for _ in range(60):
        batch = next(far)
        batches[far.address.step] = batch
    dataset = packed()
    for step in (0, 7, 59):
        address = far.batch_at(step)
        assert_same(batches[step], rows_at(dataset, address))
    iterator.seek(59)
    batch = next(iterator)
    np.testing.assert_array_equal(batch["input_ids"], batches[59]["input_ids"])
    iterator.seek(1)
    next(iterator)
    np.testing.assert_array_equal(next(iterator)["input_ids"], batches[4]["input_ids"])


def rows_at(dataset, address):
    rows = []
    for epoch, index in zip(address.epochs.tolist(), address.indices.tolist(), strict=True):
        dataset.set_epoch(epoch)
        rows.append(dataset[index])
    return rows


def test_a_state_of_other_arguments_is_refused():
    state = SerialIterator(packed(), 4).state_dict()
    for options in ({"seed": 2}, {"window": 32}, {"packing": "concat"}):
        with pytest.raises(ValueError, match="the snapshot was saved with another"):
            SerialIterator(packed(**options), 4).load_state_dict(state)


def test_shuffled_windows_keep_their_own_order_of_epochs():
    dataset = TokenDataset(np.arange(1000), 16, stride=4)
    iterator = SerialIterator(
        dataset, 8, order_sampler=ShuffleOrderSampler(0), converter=concat_examples
    )
    batch = next(iterator)
    starts = iterator.address.indices * 4
    np.testing.assert_array_equal(batch["input_ids"], starts[:, None] + np.arange(16))
    np.testing.assert_array_equal(batch["labels"], batch["input_ids"] + 1)


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: TransformDataset(rows, dict)])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_of_torch(num_workers, wrap):
    torch = pytest.importorskip("torch")
    from fastiter.torch import DataLoader

    dataset = packed()
    given = wrap(dataset)
    loader = DataLoader(given, 6, num_workers=num_workers, persistent_workers=num_workers > 0)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        rows = list(dataset)
        batches = list(loader)
        assert sum(len(batch["input_ids"]) for batch in batches) == len(rows)
        for k, batch in enumerate(batches):
            assert type(batch["input_ids"]) is torch.Tensor
            assert_same(batch, rows[6 * k : 6 * k + 6])


def test_a_distributed_sampler_of_other_ranks_is_refused_as_the_state_is_loaded():
    torch = pytest.importorskip("torch")
    from fastiter.torch import DataLoader

    def on(ranks):
        sampler = torch.utils.data.DistributedSampler(dataset, ranks, 0, shuffle=False)
        return DataLoader(dataset, 6, sampler=sampler)

    dataset = packed()
    loader = on(2)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"sampler.num_replicas = 2, which is now 1"):
        on(1).load_state_dict(loader.state_dict())


def tokens_of(rows):
    return {int(token) for row in rows for token in row["input_ids"]}


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({"length": 8, "packing": "bfd"}, True),
        ({"length": 8, "packing": "concat"}, False),
        ({"length": 4}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: TransformDataset(rows, dict)])
def test_rows_that_documents_are_fitted_into_anew_do_not_load_after_growth(
    options, is_refused, wrap
):
    documents = [[10 * i + k for k in range(1 + i % 5)] for i in range(20)]
    grown = documents + [[1000 + i] * 3 for i in range(8)]

    def make(given):
        return SerialIterator(wrap(TokenDataset(given, **options)), 2, shuffle=False)

    former, later = make(documents), make(grown)
    batches = [next(former) for _ in range(2)]
    if is_refused:
        with pytest.raises(ValueError, match="packed anew"):
            later.load_state_dict(former.state_dict(), strict=False)
        assert later.current_position == 0
        return
    later.load_state_dict(former.state_dict(), strict=False)
    while later.epoch == 0:
        batches.append(next(later))
    rows = [row for batch in batches for row in batch]
    assert tokens_of(rows) >= tokens_of(TokenDataset(documents, **options)) - {0}
