"""An epoch is an order and its cuts: ranks, tails, full batches only, batch samplers."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
from drawn import draw_examples
from epochs import shared_steps
from hypothesis import given
from hypothesis import strategies as st
from inside import planner_of

from fastiter import (
    BlockShuffleOrderSampler,
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    MultiprocessIterator,
    MultithreadIterator,
    Replacement,
    SerialIterator,
    ShuffleOrderSampler,
    SkipLimitError,
    VirtualShuffleOrderSampler,
    WeightedOrderSampler,
    concat_examples,
)
from fastiter._order.example_context import key
from fastiter._plan.epoch_sampler import Cutting, EpochSampler
from fastiter.iterators.samplers._batches import epoch_by_cuttings

ranks = st.sampled_from([1, 2, 3, 5])
tails = st.sampled_from(["pad", "mask", "drop"])


def orders_of(n: int, count: int, seed: int = 7) -> list[list[int]]:
    sampler = ShuffleOrderSampler(seed)
    return [sampler(range(n), 0).tolist() for _ in range(count)]


SEEDED = ShuffleOrderSampler(7)


def on_ranks(n: int, batch_size: int | None, num_ranks: int, **arguments: Any) -> list[Any]:
    iterators = []
    for rank in range(num_ranks):
        if "batch_sampler" not in arguments:
            arguments["order_sampler"] = ShuffleOrderSampler(7)
        iterator = SerialIterator(Keys(n), batch_size, rank=rank, num_ranks=num_ranks, **arguments)
        iterators.append(iterator)
    return iterators


class Keys:
    """Each example is what its random numbers are derived from: epoch and index."""

    def __init__(self, n: int, failing: tuple[int, ...] = ()) -> None:
        self.n = n
        self.failing = failing

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[int, int]:
        if i in self.failing:
            raise OSError(i)
        return key()[1:]


def same_states(iterators: list[Any]) -> dict[str, Any]:
    texts = {json.dumps(iterator.state_dict()) for iterator in iterators}
    assert len(texts) == 1
    text = texts.pop()
    assert len(text) <= 512
    return json.loads(text)  # type: ignore[no-any-return]


# -- ranks, tails, full batches only ---------------------------------------------------------------


@given(
    n=st.integers(1, 30),
    batch_size=st.integers(1, 8),
    num_ranks=ranks,
    tail=tails,
    repeat=st.booleans(),
    drop_last=st.booleans(),
)
def test_the_rule_of_cuts(n, batch_size, num_ranks, tail, repeat, drop_last):
    arguments = {"repeat": repeat, "drop_last": drop_last, "tail": tail}
    orders = orders_of(n, 10 * batch_size * num_ranks // n + 2)  # a step more is seen
    expected = shared_steps(orders, batch_size, num_ranks, **arguments)
    expected = list(itertools.islice(expected, 9))
    if not expected:
        cause = "drop_last=True" if drop_last else "tail='drop'"
        with pytest.raises(ValueError, match=f"epoch of {n} examples has no batch: {cause} leaves"):
            on_ranks(n, batch_size, num_ranks, **arguments)
        return
    iterators = on_ranks(n, batch_size, num_ranks, **arguments)
    assert {iterator.valid for iterator in iterators} == {None}
    for step, (batches, after) in enumerate(expected, 1):
        before = iterators[0].epoch
        for iterator, rows in zip(iterators, batches, strict=True):
            assert next(iterator) == [row[:2] for row in rows]
            assert iterator.valid.tolist() == [row.is_valid for row in rows]
            assert (iterator.current_position, iterator.epoch) == after
            assert iterator.is_new_epoch == (iterator.epoch > before)
            assert planner_of(iterator).state.step == step
        same_states(iterators)
    if not repeat:
        assert len(iterators[0]) == len(expected) or len(expected) == 9
        for iterator in iterators if len(expected) < 9 else ():
            with pytest.raises(StopIteration):
                next(iterator)
            assert list(iterator) == []
            assert len(next(iter(iterator))) == len(expected[0][0][0])  # the next epoch


@given(
    n=st.integers(8, 40),
    sizes=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    counts=st.tuples(ranks, ranks),
    n_steps=st.integers(0, 6),
    repeat=st.booleans(),
)
def test_resumed_with_other_ranks_and_batch_size(n, sizes, counts, n_steps, repeat):
    """A state is followed by the rest of the epoch, whoever cuts it."""
    iterators = on_ranks(n, sizes[0], counts[0], repeat=repeat)
    for iterator in iterators:
        list(itertools.islice(iterator, n_steps))
    state = same_states(iterators)
    resumed = on_ranks(n, sizes[1], counts[1], repeat=repeat)
    for iterator in resumed:
        iterator.load_state_dict(state)
    assert same_states(resumed)["step"] == state["step"]
    epoch, position = state["epoch"], state["position"]
    orders = orders_of(n, epoch + 30)[epoch:]
    expected = shared_steps(orders, sizes[1], counts[1], repeat=repeat, position=position)
    for batches, _ in itertools.islice(expected if repeat or not epoch else (), 5):
        for iterator, rows in zip(resumed, batches, strict=True):
            assert next(iterator) == [(row.epoch + epoch, row.index) for row in rows]


def test_an_epoch_begun_with_smaller_batches_has_no_full_one_left():
    iterator = SerialIterator(range(10), 4, shuffle=False, drop_last=True)
    small = SerialIterator(range(10), 1, shuffle=False)
    list(itertools.islice(small, 8))
    iterator.load_state_dict(small.state_dict())
    assert next(iterator) == [0, 1, 2, 3]
    assert (iterator.epoch, iterator.is_new_epoch, iterator.current_position) == (1, True, 4)
    once = SerialIterator(range(10), 4, shuffle=False, drop_last=True, repeat=False)
    once.load_state_dict(small.state_dict())
    assert list(once) == []
    assert once.epoch == 1


def test_an_epoch_of_batches_that_leaves_ranks_without_examples():
    given = [np.arange(6), np.arange(2)]
    iterator = SerialIterator(
        range(6), batch_sampler=lambda epoch: [given[epoch]], rank=0, num_ranks=3, tail="drop"
    )
    with pytest.raises(ValueError, match=r"of 2 examples has no full batch: tail is 'drop', for 3"):
        list(itertools.islice(iterator, 2))


def test_a_dataset_that_shrinks_to_less_than_a_batch():
    dataset = Keys(10)
    iterator = SerialIterator(dataset, 4, shuffle=False, drop_last=True)
    next(iterator)
    dataset.n = 3
    with pytest.raises(ValueError, match="epoch of 3 examples has no full batch"):
        list(itertools.islice(iterator, 3))


@pytest.mark.parametrize("kind", [MultithreadIterator, MultiprocessIterator])
@pytest.mark.parametrize("tail", ["mask", "drop"])
def test_workers_give_the_same(kind, tail):
    """Also the epochs of rows: those of a rank's part of a batch that straddles two."""
    cases = [{"repeat": True}, {"repeat": False, "tail": tail}, {"repeat": True, "drop_last": True}]
    for case, rank in itertools.product(cases, range(3)):
        arguments = {"rank": rank, "num_ranks": 3, **case}
        expected = SerialIterator(Keys(23), 3, order_sampler=ShuffleOrderSampler(1), **arguments)
        options = {"n_processes": 2, "context": "fork"} if kind is MultiprocessIterator else {}
        with kind(
            Keys(23), 3, order_sampler=ShuffleOrderSampler(1), n_prefetch=3, **arguments, **options
        ) as iterator:
            for batch in itertools.islice(iterator, 10):
                assert batch == next(expected)
                assert iterator.valid.tolist() == expected.valid.tolist()
                assert iterator.state_dict() == expected.state_dict()


def test_copies_and_pickles_go_on_with_their_part():
    iterator = on_ranks(23, 3, 3, repeat=True, tail="mask")[1]
    for _ in range(3):
        next(iterator)
    copied, pickled = copy.copy(iterator), pickle.loads(pickle.dumps(iterator))
    expected = [next(iterator) for _ in range(9)]
    assert [next(copied) for _ in range(9)] == expected
    assert [next(pickled) for _ in range(9)] == expected
    assert (pickled.rank, pickled.num_ranks, pickled.tail) == (1, 3, "mask")


def test_a_batch_that_was_skipped_is_delivered_empty_with_ranks():
    """So that ranks stay in step."""
    order = orders_of(12, 1)[0]
    skipping = {"on_error": "skip", "skip_limit": None, "repeat": False, "tail": "mask"}
    for failing in (order[2:4], order[10:], order[11:]):
        batches = [
            list(
                SerialIterator(
                    Keys(12, tuple(failing)),
                    2,
                    rank=rank,
                    num_ranks=2,
                    order_sampler=ShuffleOrderSampler(7),
                    **skipping,
                )
            )
            for rank in range(2)
        ]
        assert [len(rows) for rows in batches] == [3, 3]
        assert sum(len(batch) for rows in batches for batch in rows) == 12 - len(failing)


def test_valid_tells_of_the_rows_that_were_not_skipped():
    order = orders_of(9, 1)[0]
    dataset = Keys(9, (order[8],))
    iterators = [
        SerialIterator(
            dataset,
            4,
            rank=rank,
            num_ranks=2,
            order_sampler=ShuffleOrderSampler(7),
            repeat=False,
            tail="mask",
            on_error="skip",
            skip_limit=None,
        )
        for rank in range(2)
    ]
    last = [list(iterator)[-1] for iterator in iterators]
    assert [iterator.valid.tolist() for iterator in iterators] == [[], [False]]
    assert last == [[], [(0, order[0])]]


def test_a_converter_gets_no_empty_batch():
    dataset = Keys(8, (0, 1))
    iterator = SerialIterator(
        dataset,
        2,
        rank=0,
        num_ranks=2,
        shuffle=False,
        repeat=False,
        on_error="skip",
        skip_limit=None,
        converter=concat_examples,
    )
    with pytest.raises(SkipLimitError, match="of this rank's batch"):
        next(iterator)
    assert next(iterator)[1].tolist() == [4, 5]


def test_a_replacement_fills_the_batch():
    iterator = SerialIterator(
        Keys(4, (0, 1)),
        2,
        rank=0,
        num_ranks=2,
        shuffle=False,
        repeat=False,
        on_error=lambda index, error: Replacement(index),
    )
    assert next(iterator) == [0, 1]


@pytest.mark.parametrize(
    ("match", "arguments"),
    [
        ("draw the same orders", {}),
        ("draw the same orders", {"order_sampler": ShuffleOrderSampler()}),
        ("rank must be below num_ranks", {"rank": 2}),
        ("give both rank and num_ranks", {"rank": None}),
        ("'auto' the launcher tells both", {"rank": "auto"}),
        ("must be an integer, 'auto' or None", {"rank": "all"}),
        ("tail must be one of 'pad', 'mask', 'drop'", {"tail": "uneven", "shuffle": False}),
    ],
)  # fmt: skip
def test_ranks_that_are_refused(match, arguments):
    with pytest.raises(ValueError, match=match):
        SerialIterator(range(10), 2, **{"rank": 0, "num_ranks": 2, **arguments})


VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_NTASKS"),
}


@pytest.fixture
def _no_launcher(monkeypatch):
    for name in (*itertools.chain(*VARIABLES.values()), "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)


def auto():
    iterator = SerialIterator(range(10), 2, shuffle=False, rank="auto")
    return iterator.rank, iterator.num_ranks


@pytest.mark.usefixtures("_no_launcher")
@pytest.mark.parametrize("launcher", VARIABLES)
def test_the_launcher_tells_the_rank(monkeypatch, launcher):
    assert auto() == (0, 1)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    for name, value in zip(VARIABLES[launcher], "14", strict=True):
        monkeypatch.setenv(name, value)
    assert auto() == (1, 4)
    for wrong in (("1", "x"), ("-1", "4"), ("1", None), (None, "4")):
        for name, value in zip(VARIABLES[launcher], wrong, strict=True):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=" and ".join(VARIABLES[launcher])):
            auto()


@pytest.mark.usefixtures("_no_launcher")
def test_torchrun_within_a_slurm_job(monkeypatch):
    given = {"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert auto() == (3, 8)


@pytest.mark.usefixtures("_no_launcher")
def test_a_slurm_job_that_is_no_step_is_refused(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert auto() == (0, 1)  # a job of one task
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.raises(ValueError, match="start the program by srun"):
        auto()


# -- batch samplers --------------------------------------------------------------------------------


def batches_of(n: int, epoch: int) -> list[list[int]]:
    """Batches of 1 to 5 examples, other ones each epoch."""
    rng = np.random.RandomState(epoch)
    order, cuts = rng.permutation(n), np.cumsum(rng.randint(1, 6, n))
    return [batch.tolist() for batch in np.split(order, cuts) if batch.size]


class Batches:
    """A batch sampler that pickles and counts its calls."""

    def __init__(self, n: int, grow: int = 0) -> None:
        self.n = n
        self.grow = grow
        self.calls: list[int] = []

    def __call__(self, epoch: int) -> list[list[int]]:
        self.calls.append(epoch)
        if epoch >= self.grow > 0:
            return [list(range(self.n))]  # one large batch
        return batches_of(self.n, epoch)


def test_batches_of_a_function(make):
    iterator = make(range(30), None, batch_sampler=Batches(30))
    assert iterator.batch_size is None
    expected = [(e, batch) for e in range(3) for batch in batches_of(30, e)]
    position = 0
    for k, (epoch, batch) in enumerate(expected):
        if epoch == iterator.epoch and position == 0:
            assert len(iterator) == len(batches_of(30, epoch))
        assert next(iterator) == batch
        position = (position + len(batch)) % 30
        is_last = k + 1 == len(expected) or expected[k + 1][0] > epoch
        assert iterator.is_new_epoch == is_last
        assert (iterator.current_position, iterator.epoch) == (position, epoch + is_last)
    assert iterator.stats().examples == 90


def test_without_repeat_each_loop_is_an_epoch_of_batches(make):
    iterator = make(range(9), None, repeat=False, batch_sampler=Batches(9))
    assert [list(iterator) for _ in range(3)] == [batches_of(9, epoch) for epoch in range(3)]


@pytest.mark.parametrize("converter", [None, concat_examples])
def test_a_later_epoch_may_have_larger_batches(make, converter):
    iterator = make(range(300), None, batch_sampler=Batches(300, grow=1), converter=converter)
    n_first = len(iterator)
    kept = [next(iterator) for _ in range(n_first)]
    for _ in range(2):
        assert list(next(iterator)) == list(range(300))
    assert [list(batch) for batch in kept] == batches_of(300, 0)


@given(n=st.integers(1, 25), num_ranks=ranks, tail=tails, n_steps=st.integers(0, 8), others=ranks)
def test_batches_on_ranks(n, num_ranks, tail, n_steps, others):
    """Each step's batches are the next ones; the rows of the last step are shared out evenly."""
    sampler = Batches(n)
    arguments = {"batch_sampler": sampler, "tail": tail, "repeat": False}

    def expected(batches, num_ranks):
        while len(batches) >= num_ranks:
            yield batches[:num_ranks]
            batches = batches[num_ranks:]
        rows = [row for batch in batches for row in batch]
        share = len(rows) // num_ranks if tail == "drop" else -(-len(rows) // num_ranks)
        order = [row for batch in batches_of(n, 0) for row in batch]
        while len(rows) < share * num_ranks:
            rows += order
        if share:
            yield [rows[r * share : (r + 1) * share] for r in range(num_ranks)]

    def taken(iterators, count):
        return [[next(i) for i in iterators] for _ in range(count)]

    def indices(steps):
        return [[[index for _, index in batch] for batch in step] for step in steps]

    steps = list(expected(batches_of(n, 0), num_ranks))
    if not steps:
        return
    iterators = on_ranks(n, None, num_ranks, **arguments)
    assert len(iterators[0]) == len(steps)
    n_steps = min(n_steps, len(steps))
    assert indices(taken(iterators, n_steps)) == steps[:n_steps]
    state = same_states(iterators)
    rest = batches_of(n, 0)[n_steps * num_ranks :]
    if not list(expected(batches_of(n, 0), others)) or (n_steps == len(steps)):
        return
    resumed = on_ranks(n, None, others, **arguments)
    for iterator in resumed:
        iterator.load_state_dict(state)
    steps = list(expected(rest, others))
    assert indices(taken(resumed, len(steps))) == steps
    with pytest.raises(StopIteration):
        next(resumed[0])


def test_a_state_holds_the_digest_of_the_epochs_batches(save, load):
    iterator = SerialIterator(range(30), batch_sampler=Batches(30))
    for _ in range(len(iterator) + 2):
        next(iterator)
    stored, state = save(iterator), json.loads(json.dumps(iterator.state_dict()))
    assert len(json.dumps(state)) <= 512
    following = [next(iterator) for _ in range(20)]
    resumed = SerialIterator(range(30), batch_sampler=Batches(30))
    resumed.load_state_dict(state)
    assert [next(resumed) for _ in range(20)] == following
    load(resumed, stored)
    assert [next(resumed) for _ in range(20)] == following
    other = SerialIterator(range(31), batch_sampler=lambda epoch: batches_of(30, epoch + 1))
    before = other.state_dict()
    for wrong in (other, SerialIterator(range(30), 3), SerialIterator(range(30), 3, shuffle=False)):
        with pytest.raises(ValueError, match="order"):
            wrong.load_state_dict(state)
    assert other.state_dict() == before
    plain = SerialIterator(range(30), 3, shuffle=False)
    shuffled = SerialIterator(range(30), 3)
    for source in (plain, shuffled):
        with pytest.raises(ValueError, match="without a"):
            resumed.load_state_dict(source.state_dict())


def test_a_copy_asks_for_no_epoch_again():
    sampler = Batches(12)
    iterator = SerialIterator(range(12), batch_sampler=sampler)
    for _ in range(len(iterator)):
        next(iterator)
    assert sampler.calls == [0, 1]
    iterator.state_dict()
    pickle.loads(pickle.dumps(iterator)).state_dict()
    next(copy.copy(iterator))
    assert sampler.calls == [0, 1]


@pytest.mark.parametrize(
    ("error", "match", "batches"),
    [
        (ValueError, "none of them empty, but batch 1", [[1], []]),
        (ValueError, "none of them empty, but batch 0", [[[1]]]),
        (ValueError, "dtype float64", [[1.0]]),
        (ValueError, "gave no batch", []),
        (ValueError, r"index 10, outside 0 \.\. 9", [[10]]),
        (ValueError, "index -1", [[3, -1]]),
        (TypeError, r"batch_sampler\(0\) must give a list", None),
    ],
)
def test_batches_that_are_none(error, match, batches):
    with pytest.raises(error, match=match):
        SerialIterator(range(10), batch_sampler=lambda epoch: batches)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (TypeError, "batch_size must be an integer", {"batch_sampler": None}),
        (ValueError, "leave out batch_size=", {"batch_size": 2}),
        (ValueError, "leave out shuffle= and drop_last=", {"shuffle": False, "drop_last": True}),
        (ValueError, "leave out order_sampler=", {"order_sampler": ShuffleOrderSampler(0)}),
        (TypeError, "lambda epoch: list", {"batch_sampler": [[1]]}),
        (TypeError, "lambda epoch: list", {"batch_sampler": Batches}),
    ],
)
def test_arguments_beside_a_batch_sampler(error, match, arguments):
    with pytest.raises(error, match=match):
        SerialIterator(range(10), **{"batch_sampler": Batches(10), **arguments})


class Pairs(EpochSampler):
    """Neighbours stay together; how many neighbours is a limit. Batches are shuffled."""

    def __init__(self, seed: int, length: int) -> None:
        super().__init__(seed)
        self.length = length

    def limits(self) -> tuple[int]:
        return (self.length,)

    def arguments(self) -> tuple[()]:
        return ()

    def epoch(self, number, n_examples, cuttings=()):
        return epoch_by_cuttings(self, number, n_examples, cuttings)

    def _plan_batches(self, rows, n_examples, number, cutting):
        rows = np.arange(n_examples) if rows is None else rows
        (length,) = cutting.limits
        batches = np.split(rows, range(length, len(rows), length))
        rng = np.random.RandomState([self.seed[0] % 2**32, number])
        batches = [batches[k] for k in rng.permutation(len(batches))]
        cuts = np.cumsum([0, *(len(batch) for batch in batches)])
        return np.concatenate(batches), cuts.astype(np.int64)


@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=4), data=st.data())
def test_a_seeded_batch_sampler_loaded_with_other_limits(lengths, data):
    """The rest of the epoch comes exactly once, the same after every load."""
    seen: list[int] = []
    iterators = [SerialIterator(range(29), batch_sampler=Pairs(2**40, lengths[0]))]
    for length in lengths[1:]:
        for batch in itertools.islice(iterators[0], data.draw(st.integers(0, 4))):
            seen += batch
            if iterators[0].epoch:
                break
        if iterators[0].epoch:
            break
        state = json.loads(json.dumps(iterators[0].state_dict()))
        assert len(json.dumps(state)) <= 512
        iterators = [
            SerialIterator(range(29), batch_sampler=Pairs(2**40, length)) for _ in range(2)
        ]
        for iterator in iterators:
            iterator.load_state_dict(state)
    while not iterators[0].epoch:
        batches = [next(iterator) for iterator in iterators]
        assert batches == batches[:1] * len(batches)
        assert len({iterator.current_position for iterator in iterators}) == 1
        seen += batches[0]
    assert sorted(seen) == list(range(29))
    whole = SerialIterator(range(29), batch_sampler=Pairs(2**40, iterators[0].batch_sampler.length))
    whole.load_state_dict(iterators[0].state_dict())
    assert [next(whole) for _ in range(9)] == [next(iterators[0]) for _ in range(9)]


def test_a_batch_sampler_is_no_order_sampler():
    with pytest.raises(TypeError, match="gives batches: pass it as batch_sampler="):
        SerialIterator(range(4), 2, order_sampler=Pairs(0, 2))
    assert (
        Cutting(0, 1, (2,))
        == planner_of(SerialIterator(range(4), batch_sampler=Pairs(0, 2))).cuttings_of(0)[0]
    )


@given(
    counts=st.tuples(ranks, ranks),
    limits=st.tuples(st.integers(100, 400), st.integers(100, 400)),
    n_steps=st.integers(0, 6),
)
@draw_examples(20)
def test_buckets_loaded_with_other_ranks_and_limits(counts, limits, n_steps):
    lengths = np.random.RandomState(0).randint(1, 60, 200)

    def iterators(place):
        return [
            SerialIterator(
                range(200),
                batch_sampler=LengthBucketBatchSampler(
                    lengths, max_tokens=limits[place], batch_size=9, seed=5, window=64
                ),
                rank=rank,
                num_ranks=counts[place],
                repeat=False,
            )
            for rank in range(counts[place])
        ]

    first, second = iterators(0), iterators(1)
    seen = [row for it in first for batch in itertools.islice(it, n_steps) for row in batch]
    state = same_states(first)
    for iterator in second:
        iterator.load_state_dict(state)
    for iterator in second:
        for batch in iterator:
            assert len(batch) <= 9
            assert len(batch) * max(lengths[row] for row in batch) <= limits[1]
            seen += batch
    assert sorted(seen) == list(range(200))


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differs", "sampler"),
    [
        ("it is of another kind: BlockShuffleOrderSampler", VirtualShuffleOrderSampler(3)),
        (r"the seed differs: its words are \(\d+, \d+\), here", BlockShuffleOrderSampler(4, 3, 2)),
        (r"arguments are \[3, 2\], here they are \[3, 5\]", BlockShuffleOrderSampler(3, 3, 5)),
    ],
)
def test_an_error_says_what_differs(differs, sampler):
    state = SerialIterator(range(30), 4, order_sampler=BlockShuffleOrderSampler(3, 3, 2))
    other = SerialIterator(range(30), 4, order_sampler=sampler)
    with pytest.raises(ValueError, match=differs):
        other.load_state_dict(state.state_dict())
    batches = SerialIterator(range(30), batch_sampler=Batches(30))
    other = SerialIterator(range(30), batch_sampler=lambda epoch: [[3]])
    with pytest.raises(ValueError, match=r"batch_sampler\(0\) gives another epoch"):
        other.load_state_dict(batches.state_dict())
    buckets = LengthBucketBatchSampler(np.ones(30, int), batch_size=4, seed=0)
    buckets = SerialIterator(range(30), batch_sampler=buckets)
    with pytest.raises(ValueError, match="it is of another kind: LengthBucketBatchSampler"):
        other.load_state_dict(buckets.state_dict())
    mixture = SerialIterator(range(30), 4, order_sampler=MixtureOrderSampler([20, 10], [1, 2], 0))
    with pytest.raises(ValueError, match="saved without a batch_sampler"):
        other.load_state_dict(mixture.state_dict())
    with pytest.raises(ValueError, match="it is of another kind"):
        mixture.load_state_dict(batches.state_dict())


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"anchor": [1, 2]}, {"step": -1}, {"step": "3"}, {"anchor": None}, {"cut": 3}],
)
def test_cuts_that_are_damaged(change):
    iterator = SerialIterator(range(30), 4, shuffle=False)
    next(iterator)
    before, stored = iterator.state_dict(), {}
    iterator.serialize(stored.__setitem__)
    name = next(iter(change))
    message = "version 2" if name == "version" else "'(step|cuts?)' cannot be read"
    damaged = {**before, **change} if name in before else {**before, "cut": change}
    cuts = {**json.loads(stored["cuts"].tobytes()), **change}
    for state in damaged, {**stored, "cuts": 3 if name == "cut" else cuts}:
        with pytest.raises(ValueError, match=message):
            iterator.load_state_dict(state)
    assert iterator.state_dict() == before


def test_a_state_of_a_sampler_without_cuts_is_refused():
    iterator = SerialIterator(range(30), 4, order_sampler=ShuffleOrderSampler(3))
    next(iterator)
    before = iterator.state_dict()
    with pytest.raises(ValueError, match="a record of its sampler, but no 'cut'"):
        iterator.load_state_dict({name: before[name] for name in before if name != "cut"})
    assert iterator.state_dict() == before


# -- datasets that have grown ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampler",
    [ShuffleOrderSampler(3), VirtualShuffleOrderSampler(3), ShuffleOrderSampler(), None],
    ids=["seed", "virtual", "generator", "none"],
)
def test_a_dataset_that_has_grown(sampler):
    arguments = {"shuffle": False} if sampler is None else {"order_sampler": sampler}
    old = SerialIterator(range(10), 4, **arguments)
    first = next(old)
    state = old.state_dict()
    grown = SerialIterator(range(15), 4, **arguments)
    before = grown.state_dict()
    with pytest.raises(ValueError, match="10"):
        grown.load_state_dict(state)
    assert str(grown.state_dict()) == str(before)
    grown.load_state_dict(state, strict=False)
    following = [row for _ in range(9) for row in next(grown)]
    epoch = [*first, *following][:10]
    assert sorted(epoch) == list(range(10))
    rest = following[6:]
    assert sorted(rest[:15]) == list(range(15))
    # A state of the larger dataset loads where the present epoch is still one of the smaller.
    after = grown.state_dict()
    expected = [next(grown) for _ in range(9)] if sampler is None or sampler.seed else []
    grown.load_state_dict(state, strict=False)
    grown.load_state_dict(after)
    assert [next(grown) for _ in expected] == expected
    smaller = SerialIterator(range(9), 4, **arguments)
    for strict in (True, False):
        with pytest.raises(ValueError, match="9"):
            smaller.load_state_dict(state, strict=strict)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "make_sampler",
    [lambda: ShuffleOrderSampler(3), ShuffleOrderSampler, lambda: np.roll, lambda: None],
    ids=["seed", "generator", "function", "none"],
)
def test_a_state_that_is_loaded_again_tells_of_a_dataset_that_has_grown(make_sampler, strict):
    def make(n: int) -> SerialIterator:
        sampler = make_sampler()
        arguments = {"shuffle": False} if sampler is None else {"order_sampler": sampler}
        return SerialIterator(range(n), 4, **arguments)

    old, grown = make(10), make(15)
    first = next(old)
    grown.load_state_dict(old.state_dict(), strict=False)
    second = next(grown)
    for _ in range(2):
        grown.load_state_dict(grown.state_dict(), strict=strict)
    rows = [*first, *second, *(row for _ in range(5) for row in next(grown))]
    assert sorted(rows[:10]) == list(range(10))
    assert sorted(rows[10:25]) == list(range(15))


@pytest.mark.parametrize("kind", ["weights", "mixture", "buckets"])
def test_orders_that_are_made_for_their_examples_refuse_a_dataset_that_has_grown(kind):
    def make(n: int) -> SerialIterator:
        if kind == "buckets":
            lengths = LengthBucketBatchSampler(np.ones(n, int), batch_size=4, seed=0)
            return SerialIterator(range(n), batch_sampler=lengths)
        sampler = {
            "weights": lambda: WeightedOrderSampler(np.ones(n), 0),
            "mixture": lambda: MixtureOrderSampler([n - 2, 2], [1, 1], 0, stop=10),
        }[kind]()
        return SerialIterator(range(n), 4, order_sampler=sampler)

    old, grown = make(10), make(20)
    next(old)
    before = grown.state_dict()
    expected = {
        "mixture": r"its sources have \[8, 2\] examples, here they have \[18, 2\]",
        "weights": r"its arguments are \[10, True\], here they are \[20, True\]",
        "buckets": "the arguments differ",  # of lengths a state has a digest
    }[kind]
    with pytest.raises(ValueError, match=expected):
        grown.load_state_dict(old.state_dict(), strict=False)
    assert str(grown.state_dict()) == str(before)


def test_a_mixture_of_many_sources_tells_how_many_examples_they_had():
    def make(last: int) -> SerialIterator:
        sampler = MixtureOrderSampler([3] * 40 + [last], [1] * 41, 0)
        return SerialIterator(range(120 + last), 4, order_sampler=sampler)

    with pytest.raises(ValueError, match="its sources have 125 examples, here they have 127"):
        make(7).load_state_dict(make(5).state_dict())
