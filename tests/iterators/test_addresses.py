"""Addresses: which examples a step's batch has, told without data; seek; steps left out."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from drawn import draw_examples
from hypothesis import given
from hypothesis import strategies as st

from fastiter import (
    BlockShuffleOrderSampler,
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    SerialIterator,
    ShuffleOrderSampler,
    VirtualShuffleOrderSampler,
    __main__,
)
from fastiter._order.example_context import key
from fastiter._order.permutation import example_words
from fastiter.tokens import TokenDataset

N = 23
LENGTHS = np.random.RandomState(0).randint(1, 9, N)


def function(epoch: int) -> list[Any]:
    order = np.random.RandomState(epoch).permutation(N)
    return np.array_split(order, 5 + epoch % 3)


KINDS: dict[str, dict[str, Any]] = {
    "order of indices": {"batch_size": 4, "shuffle": False},
    "seed": {"batch_size": 4, "order_sampler": ShuffleOrderSampler},
    "virtual": {"batch_size": 30, "order_sampler": VirtualShuffleOrderSampler},
    "mixture": {
        "batch_size": 4,
        "order_sampler": lambda seed: MixtureOrderSampler([20, 3], [0.7, 0.3], seed),
    },
    "full batches": {"batch_size": 3, "order_sampler": ShuffleOrderSampler, "drop_last": True},
    "one epoch": {"batch_size": 2, "order_sampler": ShuffleOrderSampler, "repeat": False},
    "function": {"batch_sampler": function},
    "tokens": {
        "batch_sampler": lambda seed: LengthBucketBatchSampler(LENGTHS, max_tokens=24, seed=seed)
    },
    "buckets": {
        "batch_sampler": lambda seed: LengthBucketBatchSampler(LENGTHS, batch_size=2, seed=seed)
    },
}  # fmt: skip


class Keys:
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[int, int]:
        return key()[1:]


def make(kind: str, **arguments: Any) -> SerialIterator:
    given = dict(KINDS[kind])
    for name in ("order_sampler", "batch_sampler"):
        if given.get(name) not in (None, function):
            given[name] = given[name](3)
    return SerialIterator(Keys(), **{**given, **arguments})


def told(address: Any) -> list[tuple[int, int]]:
    return list(zip(address.epochs.tolist(), address.indices.tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_the_address_of_any_step_is_what_was_delivered(kind, num_ranks):
    def on_ranks(**arguments):
        return [make(kind, rank=r, num_ranks=num_ranks, **arguments) for r in range(num_ranks)]

    iterators = on_ranks()
    assert (iterators[0].step, iterators[0].address) == (0, None)
    delivered, states = {}, []
    for step in range(25):
        states.append(iterators[0].state_dict())
        for rank, iterator in enumerate(iterators):
            batch = next(iterator, None)
            if batch is None:
                continue
            delivered[step, rank] = batch
            assert iterator.step == step + 1
            address = iterator.address
            assert address[:2] == (step, rank)
            assert told(address) == batch
            first = example_words(iterator._seed, *batch[0])[0]
            assert address.seeds[0] == first
            assert address.seeds.dtype == np.uint64
    asked = make(kind, rank=0, num_ranks=num_ranks)
    places = [*delivered]
    for k in np.random.RandomState(1).permutation(len(places)):
        step, rank = places[k]
        address = asked.batch_at(step, rank=rank)
        assert (address.step, address.rank) == (step, rank)
        assert told(address) == delivered[step, rank]
    assert asked.step == 0
    last = max(step for step, _ in delivered)
    for step in (0, 1, last // 2, last, 3):
        asked.seek(step)
        assert asked.step == step
        assert str(asked.state_dict()) == str(states[step])
        assert next(asked) == delivered[step, 0]
    if kind == "one epoch":
        with pytest.raises(LookupError, match="after the end"):
            asked.batch_at(last + 1)


@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    steps=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    drop_last=st.booleans(),
)
@draw_examples(40)
def test_steps_go_on_where_other_arguments_begin(sizes, steps, drop_last):
    first, second, third = (
        SerialIterator(
            Keys(),
            size,
            order_sampler=ShuffleOrderSampler(1),
            drop_last=drop_last,
            num_ranks=2,
            rank=0,
        )
        for size in (*sizes, sizes[1])
    )
    list(itertools.islice(first, steps[0]))
    second.load_state_dict(first.state_dict())
    assert second.step == steps[0]
    batches = [next(second) for _ in range(steps[1] + 3)]
    third.load_state_dict(json.loads(json.dumps(second.state_dict())))
    for place, batch in enumerate(batches):
        assert told(third.batch_at(steps[0] + place)) == batch
    if steps[0] and sizes[0] != sizes[1]:
        for move in (third.batch_at, third.seek):
            with pytest.raises(LookupError, match=f"step {steps[0] - 1} is before step {steps[0]}"):
                move(steps[0] - 1)


def test_steps_behind_a_state_without_a_seed():
    without = SerialIterator(range(10), 3)
    list(itertools.islice(without, 5))
    iterator = SerialIterator(range(10), 3, order_sampler=ShuffleOrderSampler(1))
    iterator.load_state_dict(without.state_dict())
    addresses = [iterator.batch_at(step) for step in range(5, 14)]
    assert [each.indices.tolist() for each in addresses] == list(itertools.islice(iterator, 9))
    with pytest.raises(LookupError, match="step 4 is before step 5"):
        iterator.batch_at(4)
    iterator.seek(7)
    assert next(iterator) == addresses[2].indices.tolist()


def test_a_rest_that_fills_no_batch_has_no_address():
    first = SerialIterator(range(5), 3, shuffle=False)
    next(first)
    last = SerialIterator(range(5), 3, shuffle=False, repeat=False, drop_last=True)
    last.load_state_dict(first.state_dict())
    with pytest.raises(LookupError, match="step 1 is after the end"):
        last.batch_at(1)
    assert list(last) == [] and last.address is None


def test_a_reset_goes_on_counting():
    iterator = make("one epoch")
    n = len(list(iterator))
    second = list(iterator)
    assert iterator.step == 2 * n
    assert told(iterator.address) == second[-1]
    assert told(iterator.batch_at(n)) == second[0]
    with pytest.raises(LookupError, match=f"before step {n}"):
        iterator.batch_at(n - 1)


def test_far_steps():
    sampler = VirtualShuffleOrderSampler(0)
    iterator = SerialIterator(range(10**12), 256, order_sampler=sampler)
    address = iterator.batch_at(10**9 * 4)
    assert set(address.epochs.tolist()) == {1}
    iterator.seek(10**9 * 4)
    assert next(iterator) == address.indices.tolist()
    assert len(json.dumps(iterator.state_dict())) <= 512
    again = SerialIterator(range(10**12), 256, order_sampler=VirtualShuffleOrderSampler(0))
    again.load_state_dict(iterator.state_dict())
    assert next(again) == next(iterator)


def of_fixed_sizes(size: int) -> SerialIterator:
    return SerialIterator(
        range(N), size, order_sampler=ShuffleOrderSampler(3), drop_last=True, rank=0, num_ranks=2
    )


def of_epochs_of_varying_sizes(size: int) -> SerialIterator:
    documents = [np.arange(n) for n in np.random.RandomState(0).randint(1, 60, N)]
    dataset = TokenDataset(documents, 64, seed=1, packing="bfd", window=8)
    return SerialIterator(dataset, size, drop_last=True, rank=0, num_ranks=2)


def of_buckets(size: int) -> SerialIterator:
    sampler = LengthBucketBatchSampler(np.ones(N, int), batch_size=size, seed=3, drop_last=True)
    return SerialIterator(range(N), batch_sampler=sampler, rank=0, num_ranks=2)


@pytest.mark.parametrize("make", [of_fixed_sizes, of_epochs_of_varying_sizes, of_buckets])
def test_seek_to_the_step_of_a_loaded_state_keeps_a_rest_that_has_no_batch(make):
    """Loaded with batches too large for what is left, and then with smaller ones."""
    n_steps = len(make(2)) - 1
    first = make(2)
    for _ in range(n_steps):
        next(first)
    state = first.state_dict()
    larger = make(5)
    larger.load_state_dict(state)
    position = larger.epoch, larger.current_position
    next(larger)
    assert larger.is_new_epoch and larger.epoch > 0  # nothing was left for a step of 10
    following = larger.address
    larger.seek(n_steps)
    assert (larger.epoch, larger.current_position) == position
    rests = []
    for saved in (larger.state_dict(), state):
        smaller = make(2)
        smaller.load_state_dict(saved)
        rows = smaller.batch_at(n_steps, rank=0), smaller.batch_at(n_steps, rank=1)
        rests.append({row for address in rows for row in told(address) if row[0] == position[0]})
    assert rests[0] == rests[1] != set()
    next(larger)
    assert told(larger.address) == told(following)


def test_steps_that_are_left_out(make):
    """Like batches that were not looked at; what they said of epochs, the next one says."""
    arguments = {"order_sampler": ShuffleOrderSampler(2)}
    plain = make(range(10), 4, **arguments)
    expected = {step: next(plain) for step in range(12)}
    arguments = {"order_sampler": ShuffleOrderSampler(2)}
    iterator = make(range(10), 4, skip_steps=[(5, 7), (1, 4)], **arguments)
    for step in (0, 4, 7, 8, 9):
        assert next(iterator) == expected[step]
        assert iterator.step == step + 1
        assert iterator.is_new_epoch == (step in (4, 7, 9))
        assert iterator.address.step == step
    assert iterator.batch_at(2).indices.tolist() == expected[2]


def test_steps_that_are_left_out_are_not_planned_one_by_one():
    iterator = SerialIterator(range(10**12), 4, shuffle=False, skip_steps=[(1, 10**11)])
    assert [next(iterator)[0] for _ in range(3)] == [0, 4 * 10**11, 4 * 10**11 + 4]


def test_an_end_that_is_left_out():
    iterator = SerialIterator(range(10), 4, shuffle=False, repeat=False, skip_steps=[(1, 9)])
    assert list(iterator) == [[0, 1, 2, 3]]
    assert iterator.epoch == 1


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "with a seed only", lambda: SerialIterator(range(9), 2).batch_at(1)),
        (ValueError, "with a seed only", lambda: SerialIterator(range(9), 2).seek(1)),
        (ValueError, "rank must be below num_ranks=1", lambda: make("seed").batch_at(1, rank=1)),
        (ValueError, "step must be at least 0", lambda: make("seed").batch_at(-1)),
        (ValueError, "step must be at most", lambda: make("seed").batch_at(10**30)),
        (ValueError, "step must be at most", lambda: make("seed").seek(10**30)),
        (TypeError, "must be pairs", lambda: make("seed", skip_steps=3)),
        (ValueError, "must be pairs", lambda: make("seed", skip_steps=[3])),
        (ValueError, "stop must be at least 3", lambda: make("seed", skip_steps=[(3, 1)])),
    ],
)
def test_what_is_refused(error, match, call):
    with pytest.raises(error, match=match):
        call()


# -- by a state alone ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"order_sampler": ShuffleOrderSampler(2**70)},
        {"order_sampler": VirtualShuffleOrderSampler(2), "drop_last": True},
        {"order_sampler": BlockShuffleOrderSampler(2, 3, 2)},
        {"shuffle": False},
    ],
    ids=["shuffle", "virtual", "block", "none"],
)
def test_the_command_tells_a_batch_by_the_state(tmp_path, capsys, arguments):
    iterator = SerialIterator(Keys(), 3, rank=1, num_ranks=2, **arguments)
    for _ in range(9):
        next(iterator)
    iterator.reset()
    for _ in range(5):
        batch = next(iterator)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iterator.state_dict()))
    command = ["batch", str(state), "--step", str(iterator.step - 1)]
    assert __main__.main([*command, "--rank", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["step"], printed["rank"]) == (13, 1)
    assert [[e, i] for e, i in zip(printed["epochs"], printed["indices"], strict=True)] == [
        list(row) for row in batch
    ]
    assert printed["seeds"] == iterator.address.seeds.tolist()


def test_the_command_asks_for_what_a_state_does_not_hold(tmp_path, capsys):
    iterator = make("tokens")
    batch = next(iterator)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iterator.state_dict()))
    assert __main__.main(["batch", str(state), "--step", "0"]) == 1
    assert "--iterator MODULE:FUNCTION" in capsys.readouterr().err
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nimport fastiter\n"
        f"lengths = np.array({LENGTHS.tolist()})\n"
        "def train():\n"
        "    sampler = fastiter.LengthBucketBatchSampler(lengths, max_tokens=24, seed=3)\n"
        "    return fastiter.SerialIterator(lengths, batch_sampler=sampler)\n"
    )
    command = [sys.executable, "-m", "fastiter", "batch", "state.json", "--step", "0"]
    made = subprocess.run(
        [*command, "--iterator", "mine:train"], cwd=tmp_path, capture_output=True, check=True
    )
    assert json.loads(made.stdout)["indices"] == [index for _, index in batch]
    assert __main__.main(["batch", str(tmp_path / "none.json"), "--step", "0"]) == 1


def test_the_command_says_where_no_iterator_would_help(tmp_path, capsys):
    for random_state in (None, np.random.default_rng(0)):
        iterator = SerialIterator(Keys(), 3, order_sampler=ShuffleOrderSampler(random_state))
        next(iterator)
        state = tmp_path / "state.json"
        state.write_text(json.dumps(iterator.state_dict()))
        assert __main__.main(["batch", str(state), "--step", "0"]) == 1
        error = capsys.readouterr().err
        assert "a generator without a seed" in error and "--iterator" not in error


def no_iterator() -> int:
    return 3


def fails() -> None:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("content", "maker", "message"),
    [
        ("[1, 2", None, "is no JSON"),
        ("[1, 2]", None, "holds no state"),
        ('{"iterator": {}}', None, "holds no state"),
        ('{"current_position": 3}', None, "holds no state"),
        ('{"kind": "sources"}', None, "StreamDataset"),
        ("{}", "test_addresses", "expected --iterator MODULE:FUNCTION, not 'test_addresses'"),
        ("{}", "test_addresses:N", "no function, but 23"),
        ("{}", "test_addresses:no_iterator", "an iterator of fastiter, not 3"),
        ("{}", "test_addresses:fails", "test_addresses:fails raised KeyError: 'x'"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, capsys, monkeypatch, content, maker, message):
    monkeypatch.setitem(sys.modules, "test_addresses", sys.modules[__name__])
    monkeypatch.setattr(sys, "path", [*sys.path])
    state = tmp_path / "state.json"
    state.write_text(content)
    given = [] if maker is None else ["--iterator", maker]
    assert __main__.main(["batch", str(state), "--step", "0", *given]) == 1
    told = capsys.readouterr().err
    assert message in told and "UsageError" not in told


def test_the_command_takes_the_states_of_all_ranks(tmp_path, capsys):
    ranks = [
        SerialIterator(Keys(), 3, rank=rank, num_ranks=2, order_sampler=ShuffleOrderSampler(1))
        for rank in range(2)
    ]
    batches = [next(iterator) for iterator in ranks]
    state = tmp_path / "state.json"
    state.write_text(json.dumps([iterator.state_dict() for iterator in ranks]))
    assert __main__.main(["batch", str(state), "--step", "0", "--rank", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["indices"] == [i for _, i in batches[1]]


# -- datasets that grow ----------------------------------------------------------------------------

actions = st.sampled_from(["step", "step", "step", "load", "grow", "grow while running", "seek"])


@given(
    st.lists(st.tuples(actions, st.integers(1, 5)), max_size=14),
    st.sampled_from([None, 3]),
    st.booleans(),
    st.integers(1, 4) | st.integers(5, 40),
)
@draw_examples(150)
def test_addresses_of_a_dataset_that_grows(acts, seed, drop_last, batch_size):
    """Each batch that was delivered is told as it was, or refused; those to come as they come."""
    data, delivered = list(range(5)), {}
    drop_last = drop_last and batch_size <= len(data)

    def make():
        order = {"shuffle": False} if seed is None else {"order_sampler": ShuffleOrderSampler(seed)}
        return SerialIterator(data, batch_size, drop_last=drop_last, **order)

    iterator = make()
    for action, count in acts:
        if action == "grow" or (action == "grow while running" and seed is None):
            data += range(len(data), len(data) + count)
        if action in ("grow", "load"):
            state = json.loads(json.dumps(iterator.state_dict()))
            iterator = make()
            iterator.load_state_dict(state, strict=False)
        if action == "step":
            step, other = iterator.step, copy.copy(iterator)
            told = [iterator.batch_at(step + k).indices.tolist() for k in range(count)]
            assert [next(other) for _ in range(count)] == told
            delivered.update(enumerate([next(iterator) for _ in range(count)], step))
        if action == "seek" and delivered:
            with contextlib.suppress(LookupError):
                iterator.seek(sorted(delivered)[-1 - count % len(delivered)])
                delivered = {at: rows for at, rows in delivered.items() if at < iterator.step}
        for step, batch in delivered.items():
            with contextlib.suppress(LookupError):
                assert iterator.batch_at(step).indices.tolist() == batch


@pytest.mark.parametrize("order", [lambda: None, lambda: ShuffleOrderSampler(3)])
def test_a_state_is_told_right_epochs_after_its_dataset_has_grown(order):
    def make(size):
        sampler = order()
        given = {"shuffle": False} if sampler is None else {"order_sampler": sampler}
        return SerialIterator(range(size), 4, **given)

    former, grown = make(10), make(15)
    next(former)
    grown.load_state_dict(former.state_dict(), strict=False)
    delivered = {step: next(grown) for step in range(1, 10)}
    later = make(15)
    later.load_state_dict(json.loads(json.dumps(grown.state_dict())))
    for step in range(4, 10):
        for iterator in grown, later:
            assert iterator.batch_at(step).indices.tolist() == delivered[step]
    later.seek(6)
    assert [next(later) for _ in range(3)] == [delivered[step] for step in (6, 7, 8)]
    with pytest.raises(LookupError, match="number of examples"):
        later.batch_at(1)


@pytest.mark.parametrize("order", [lambda: None, lambda: ShuffleOrderSampler(3)])
def test_steps_of_several_epochs_around_the_growth_of_a_dataset(order):
    def make(size):
        sampler = order()
        given = {"shuffle": False} if sampler is None else {"order_sampler": sampler}
        return SerialIterator(range(size), 40, **given)

    former, grown = make(10), make(15)
    grown.load_state_dict(former.state_dict(), strict=False)
    delivered = [next(grown) for _ in range(4)]  # the first one has 10 examples, and twice 15
    for step in (3, 0, 2, 1):
        assert [grown.batch_at(each).indices.tolist() for each in range(4)] == delivered
        grown.seek(step)
        assert next(grown) == delivered[step]


def test_an_epoch_without_a_full_batch_ends_where_later_ones_have_some():
    former = SerialIterator(range(5), 2, order_sampler=ShuffleOrderSampler(3), drop_last=True)
    grown = SerialIterator(range(15), 6, order_sampler=ShuffleOrderSampler(3), drop_last=True)
    grown.load_state_dict(former.state_dict(), strict=False)
    told = [grown.batch_at(step).indices.tolist() for step in range(4)]
    assert [next(grown) for _ in range(4)] == told
    assert grown.epoch == 3
    empty = SerialIterator(range(9), 9, order_sampler=ShuffleOrderSampler(3), drop_last=True)
    empty.load_state_dict(former.state_dict(), strict=False)
    assert sorted(next(empty)) == list(range(9))
