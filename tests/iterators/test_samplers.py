"""Order samplers with a seed: their orders, and that an iteration goes on with exactly the same."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from inside import planner_of

from fastiter import (
    BlockShuffleOrderSampler,
    MixtureOrderSampler,
    SerialIterator,
    ShuffleOrderSampler,
    VirtualShuffleOrderSampler,
    WeightedOrderSampler,
    random,
)
from fastiter._plan.epoch_sampler import SamplerRecord

N = 23
WEIGHTS = np.arange(1.0, N + 1)

SAMPLERS = {
    "shuffle": lambda: ShuffleOrderSampler(7),
    "virtual": lambda: VirtualShuffleOrderSampler(7),
    "block": lambda: BlockShuffleOrderSampler(7, block_size=3, window=2),
    "replaced": lambda: WeightedOrderSampler(WEIGHTS, 7),
    "drawn": lambda: WeightedOrderSampler(WEIGHTS, 7, n_samples=9, replacement=False),
    "mixture": lambda: MixtureOrderSampler(
        [5, 18], [1, 2], 7, stop=20, schedule=[(50, [2, 1]), (70, [0.5, 0.5])]
    ),
}
COMPUTED = {"virtual", "block", "mixture"}


@pytest.fixture(params=SAMPLERS)
def name(request):
    return request.param


def batches(iterator: Any, count: int) -> list[list[int]]:
    return [next(iterator) for _ in range(count)]


# -- what an iteration goes on with ----------------------------------------------------------------


def test_snapshots_go_on_exactly(make, save, load, name):
    """Epochs later too, and though the iterator has drawn ahead."""
    iterator = make(range(N), 4, order_sampler=SAMPLERS[name]())
    for n_batches in (0, 3, 14):
        batches(iterator, n_batches)
        stored, state = save(iterator), json.loads(json.dumps(iterator.state_dict()))
        expected = batches(iterator, 20)
        resumed = SerialIterator(range(N), 4, order_sampler=SAMPLERS[name]())
        batches(resumed, 2)
        load(resumed, stored)
        assert batches(resumed, 20) == expected
        resumed.load_state_dict(state)
        assert batches(resumed, 20) == expected
        load(iterator, stored)
        assert batches(iterator, 20) == expected


def test_copies_and_pickles_go_on_exactly(make, name):
    iterator = make(range(N), 4, order_sampler=SAMPLERS[name]())
    batches(iterator, 7)
    copied, pickled = copy.copy(iterator), pickle.loads(pickle.dumps(iterator))
    expected = batches(iterator, 20)
    assert batches(make.keep(copied), 20) == expected
    assert batches(make.keep(pickled), 20) == expected


def test_all_iterators_give_the_same_also_after_resets(make, name):
    reference = SerialIterator(range(N), 4, order_sampler=SAMPLERS[name]())
    iterator = make(range(N), 4, order_sampler=SAMPLERS[name]())
    for count in (5, 0, 9, 1):
        assert batches(iterator, count) == batches(reference, count)
        iterator.reset()
        reference.reset()
    assert batches(iterator, 9) == batches(reference, 9)


def test_a_state_of_after_a_reset_goes_on_exactly(make, name):
    iterator = make(range(N), 4, order_sampler=SAMPLERS[name]())
    first = batches(iterator, 7)
    iterator.reset()
    assert batches(iterator, 7) != first
    iterator.reset()
    batches(iterator, 2)
    resumed = SerialIterator(range(N), 4, order_sampler=SAMPLERS[name]())
    resumed.load_state_dict(iterator.state_dict())
    assert batches(resumed, 20) == batches(iterator, 20)
    resumed.reset()
    iterator.reset()
    assert batches(resumed, 9) == batches(iterator, 9)


RESUME = """
import json, sys
from fastiter import *
sampler, state = {sampler}, json.loads(sys.argv[1])
iterator = SerialIterator(range(100), 7, order_sampler=sampler)
iterator.load_state_dict(state)
print(json.dumps([next(iterator) for _ in range(40)]))
"""


@pytest.mark.parametrize(
    "sampler",
    [
        "ShuffleOrderSampler(3)",
        "VirtualShuffleOrderSampler(3)",
        "WeightedOrderSampler([1] * 50 + [2] * 50, 3, replacement=False)",
    ],
)
def test_a_fresh_process_goes_on_exactly(sampler):
    iterator = SerialIterator(range(100), 7, order_sampler=eval(sampler))
    batches(iterator, 19)
    state = json.dumps(iterator.state_dict())
    program = [sys.executable, "-c", RESUME.format(sampler=sampler), state]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == batches(iterator, 40)


def test_two_iterators_of_one_sampler_do_not_disturb_each_other():
    alone = SerialIterator(range(N), 4, order_sampler=ShuffleOrderSampler(7))
    sampler = ShuffleOrderSampler(7)
    iterator = SerialIterator(range(N), 4, order_sampler=sampler)
    copied = copy.copy(iterator)
    expected = batches(alone, 30)
    mixed = [(next(iterator), next(copied)) for _ in range(30)]
    assert [one for one, _ in mixed] == [other for _, other in mixed] == expected


def test_an_iterator_made_later_of_a_sampler_gets_other_orders(name):
    """A new iterator for every epoch must not get the same order again and again."""
    sampler = SAMPLERS[name]()
    seen = []
    for _ in range(3):
        iterator = SerialIterator(range(N), 4, order_sampler=sampler, repeat=False)
        seen.append(list(iterator))
    assert len({str(epoch) for epoch in seen}) == 3


def test_called_by_itself_a_sampler_counts_and_pickles(name):
    sampler = SAMPLERS[name]()
    order = sampler(np.arange(N), 0)
    following = [np.array(sampler(order, 0)[:]).tolist() for _ in range(2)]
    again = SAMPLERS[name]()
    assert np.array_equal(again(np.arange(N), 0)[:], order[:])
    again = pickle.loads(pickle.dumps(again))
    assert [np.array(again(order, 0)[:]).tolist() for _ in range(2)] == following


# -- what a snapshot holds -------------------------------------------------------------------------


def test_a_snapshot_has_the_order_and_the_samplers_record(save, name):
    iterator = SerialIterator(range(N), 4, order_sampler=SAMPLERS[name]())
    batches(iterator, 8)
    stored = save(iterator)
    numbers = {"current_position", "epoch", "is_new_epoch", "previous_epoch_detail"}
    keys = {*numbers, "order", "example_seed", "cuts"}
    if name in COMPUTED:
        assert stored.keys() == keys
        assert stored["order"].shape == (7,)
        assert SamplerRecord.of(stored["order"]).n_drawn == iterator.epoch + 1
    else:
        assert stored.keys() == {*keys, "order_sampler"}
        position = stored["current_position"]
        assert stored["order"][position : position + 4].tolist()[:1] == next(iterator)[:1]
        assert SamplerRecord.of(stored["order_sampler"]).n_drawn == stored["epoch"] + 1


def test_snapshots_without_a_record_load(load, save):
    """Those of Chainer, and of other samplers: the order is followed, and the
    next ones are those of the epochs that come."""
    reference = SerialIterator(range(N), 4, order_sampler=ShuffleOrderSampler(7))
    batches(reference, 8)
    stored = save(reference)
    del stored["order_sampler"]
    resumed = SerialIterator(range(N), 4, order_sampler=ShuffleOrderSampler(7))
    load(resumed, stored)
    assert batches(resumed, 20) == batches(reference, 20)
    for sampler in (VirtualShuffleOrderSampler(7), BlockShuffleOrderSampler(7, 3, 2)):
        other = SerialIterator(range(N), 4, order_sampler=sampler)
        load(other, stored)
        assert next(other)[:3] == stored["order"][9:12].tolist()
        assert len(batches(other, 20)) == 20


def test_a_record_is_of_no_use_to_other_samplers(load, save):
    stored = save(SerialIterator(range(N), 4, order_sampler=ShuffleOrderSampler(7)))
    plain = SerialIterator(range(N), 4)
    load(plain, stored)  # the order is there
    assert next(plain) == stored["order"][:4].tolist()
    computed = save(SerialIterator(range(N), 4, order_sampler=VirtualShuffleOrderSampler(7)))
    for target in (SerialIterator(range(N), 4), SerialIterator(range(N), 4, shuffle=False)):
        with pytest.raises(ValueError, match="order"):
            load(target, computed)
        with pytest.raises(ValueError, match="seed"):
            target.load_state_dict(
                SerialIterator(
                    range(N), 4, order_sampler=VirtualShuffleOrderSampler(7)
                ).state_dict()
            )
        assert target.current_position == 0


OTHERS = {
    "another kind": lambda: VirtualShuffleOrderSampler(7),
    "another seed": lambda: BlockShuffleOrderSampler(8, 3, 2),
    "another argument": lambda: BlockShuffleOrderSampler(7, 3, 3),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_snapshot_of_another_sampler_is_refused(load, save, other):
    stored = save(SerialIterator(range(N), 4, order_sampler=BlockShuffleOrderSampler(7, 3, 2)))
    target = SerialIterator(range(N), 4, order_sampler=OTHERS[other]())
    expected = copy.copy(target)
    with pytest.raises(ValueError, match="another order sampler"):
        load(target, stored)
    assert batches(target, 20) == batches(expected, 20)


def test_a_snapshot_of_a_dataset_of_another_size_is_refused(load, save):
    for sampler in (ShuffleOrderSampler, VirtualShuffleOrderSampler):
        stored = save(SerialIterator(range(N), 4, order_sampler=sampler(7)))
        with pytest.raises(ValueError, match="examples"):
            load(SerialIterator(range(N + 1), 4, order_sampler=sampler(7)), stored)


def changed(array: np.ndarray, place: int, value: int) -> np.ndarray:
    array = array.copy()
    array[place] = value
    return array


DAMAGED = {
    "version": lambda s: {"order_sampler": changed(s["order_sampler"], 1, 2)},
    "tag": lambda s: {"order_sampler": changed(s["order_sampler"], 0, 2)},
    "no order drawn": lambda s: {"order_sampler": changed(s["order_sampler"], 5, 0)},
    "negative": lambda s: {"order_sampler": changed(s["order_sampler"], 5, -1)},
    "number": lambda s: {"order_sampler": changed(s["order_sampler"], 5, 2)},
    "short": lambda s: {"order_sampler": s["order_sampler"][:6]},
    "text": lambda s: {"order_sampler": np.array("x")},
    "order": lambda s: {"order": s["order"][::-1]},
    "shorter order": lambda s: {"order": s["order"][:-1]},
    "position": lambda s: {"current_position": N},
}


@pytest.mark.parametrize("fault", DAMAGED)
def test_a_damaged_snapshot_is_refused_and_changes_nothing(load, save, fault):
    iterator = SerialIterator(range(N), 4, order_sampler=ShuffleOrderSampler(7))
    batches(iterator, 3)
    stored = save(iterator)
    expected = copy.copy(iterator)
    with pytest.raises(ValueError, match="snapshot"):
        load(iterator, {**stored, **DAMAGED[fault](stored)})
    assert batches(iterator, 10) == batches(expected, 10)


def test_chainers_iterators_use_our_samplers_and_load_our_snapshots(make, save, load):
    theirs = pytest.importorskip("chainer").iterators.SerialIterator
    ours = make(range(N), 4, order_sampler=ShuffleOrderSampler(7))
    other = theirs(range(N), 4, order_sampler=ShuffleOrderSampler(7))
    assert [other.next() for _ in range(20)] == batches(ours, 20)
    load(other, save(ours))
    assert other.next()[:1] == next(ours)[:1]


def test_through_chainers_npz(make, name):
    serializers = pytest.importorskip("chainer").serializers
    iterator = make(range(N), 4, order_sampler=SAMPLERS[name]())
    batches(iterator, 8)
    file = io.BytesIO()
    serializers.save_npz(file, iterator)
    file.seek(0)
    resumed = make(range(N), 4, order_sampler=SAMPLERS[name]())
    serializers.load_npz(file, resumed)
    assert batches(resumed, 20) == batches(iterator, 20)


# -- state_dict ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [None, False])
def test_state_dict_of_other_iterations(make, shuffle):
    iterator = make(range(N), 4, shuffle=shuffle)
    batches(iterator, 8)
    state = pickle.loads(pickle.dumps(iterator.state_dict()))
    resumed = make(range(N), 4, shuffle=shuffle)
    resumed.load_state_dict(state)
    assert (resumed.epoch, resumed.current_position) == (iterator.epoch, iterator.current_position)
    assert resumed.previous_epoch_detail == iterator.previous_epoch_detail
    assert batches(resumed, 3) == batches(iterator, 3)
    with pytest.raises(ValueError, match="epoch"):
        resumed.load_state_dict({key: value for key, value in state.items() if key != "epoch"})


# -- the shuffle of a seed -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed",
    [5, np.int64(5), np.random.SeedSequence(5), 2**100, [3, 5], (3, 5), np.array([3, 5]), range(2)],
    ids=repr,
)
def test_shuffles_of_a_seed_are_the_fast_shuffle(seed):
    sampler = ShuffleOrderSampler(seed)
    first, second = sampler(range(1000), 0), sampler(range(1000), 0)
    assert np.array_equal(first, random.permutation(1000, seed))
    assert not np.array_equal(first, second)
    assert np.array_equal(np.sort(second), np.arange(1000))


def test_order_buffers_are_filled_again_when_nobody_holds_them():
    iterator = SerialIterator(range(5000), 5000, order_sampler=ShuffleOrderSampler(7))
    seen, kept = [], []
    for _ in range(8):
        next(iterator)
        order = planner_of(iterator).state.order
        seen.append(order.__array_interface__["data"][0])
    assert len(set(seen)) == 2
    expected = [ShuffleOrderSampler(7).epoch(number, 5000).order for number in range(9, 15)]
    for _ in range(6):
        kept.append(planner_of(iterator).state.order)  # as a snapshot in a dict would
        next(iterator)
    for order, array in zip(kept[1:], expected, strict=False):
        assert np.array_equal(order, array)
    assert len({array.__array_interface__["data"][0] for array in kept}) == 6


class Counting(ShuffleOrderSampler):
    """A subclass that has its own mind."""

    def __call__(self, current_order: Any, current_position: int) -> Any:
        return np.roll(current_order, 1)


def test_a_subclass_with_a_call_of_its_own_is_called():
    iterator = SerialIterator(range(3), 3, order_sampler=Counting(7))
    assert batches(iterator, 3) == [[2, 0, 1], [1, 2, 0], [0, 1, 2]]


# -- computed orders -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_an_epoch_of_10_to_the_12_costs_nothing(make, save, load, num_ranks):
    n = 10**12
    ranks = {"rank": num_ranks - 1, "num_ranks": num_ranks}
    iterator = make(range(n), 4, order_sampler=VirtualShuffleOrderSampler(1), **ranks)
    seen = batches(iterator, 50)
    assert len({index for batch in seen for index in batch}) == 200
    assert len(iterator) == -(-n // (4 * num_ranks))
    assert 0 < iterator.epoch_detail < 1e-8
    stored = {key: np.asarray(value) for key, value in save(iterator).items()}
    assert sum(value.nbytes for value in stored.values()) <= 512
    resumed = make(range(n), 4, order_sampler=VirtualShuffleOrderSampler(1), **ranks)
    stored["current_position"] = np.asarray(n - 6)
    load(resumed, stored)
    load(iterator, stored, strict=False)
    assert batches(resumed, 5) == batches(iterator, 5)  # over the end of the epoch
    assert resumed.epoch == 1
    assert len(pickle.dumps(resumed)) < 5000
    expected = make.keep(copy.copy(iterator))
    load(resumed, {}, strict=False)  # nothing is there, and nothing changes
    assert next(resumed) == next(expected)


def test_a_dataset_that_shrinks_is_noticed():
    class Shrinking:
        size = 100

        def __len__(self):
            return self.size

        def __getitem__(self, i):
            return i

    for sampler in (ShuffleOrderSampler(1), VirtualShuffleOrderSampler(1)):
        dataset = Shrinking()
        iterator = SerialIterator(dataset, 10, order_sampler=sampler)
        dataset.size = 90
        with pytest.raises(ValueError, match="90"):
            batches(iterator, 11)


# -- blocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 8, 9, 24, 25, 31, 200])
@pytest.mark.parametrize(
    ("block_size", "window"), [(1, 1), (8, 1), (8, 3), (3, 5), (50, 2), (3, 2**70)]
)
def test_windows_hold_whole_blocks_and_every_index_comes_once(n, block_size, window):
    sampler = BlockShuffleOrderSampler(3, block_size, window)
    for _ in range(4):
        order = sampler(range(n), 0)
        whole = order[:]
        assert np.array_equal(np.sort(whole), np.arange(n))
        sizes = {block: int((whole // block_size == block).sum()) for block in range(n)}
        position = 0
        while position < n:
            blocks: list[int] = []
            inside = 0
            while position + inside < n and len(blocks) <= window:
                block = int(whole[position + inside] // block_size)
                if block not in blocks:
                    if len(blocks) == window:
                        break
                    blocks.append(block)
                inside += 1
            if window == 1 or position + inside == n:
                assert inside == sum(sizes[block] for block in blocks)
            position += inside
        for start in range(0, n, 13):
            assert np.array_equal(order[start : start + 13], whole[start : start + 13])
        assert order[n:].size == 0


@pytest.mark.parametrize("block_size", [10**9, 2**62, 2**70])
def test_block_far_larger_than_the_dataset_costs_no_memory(block_size):
    order = BlockShuffleOrderSampler(3, block_size, window=2)(range(1000), 0)
    assert (
        order[:].tolist() == BlockShuffleOrderSampler(3, 1000, window=2)(range(1000), 0)[:].tolist()
    )


def test_windows_and_blocks_differ_between_epochs():
    sampler = BlockShuffleOrderSampler(3, 10, 4)
    orders = np.stack([sampler(range(400), 0)[:] for _ in range(300)])
    assert len(np.unique(orders[:, 0])) > 150
    # A window's indices are of four blocks, wherever they lie.
    assert all(len(set(order[:40] // 10)) == 4 for order in orders)
    assert len({tuple(sorted(set(order[:40] // 10))) for order in orders}) > 250


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ValueError, "block_size", (0, 0, 1)),
        (TypeError, "block_size", (0, 1.5, 1)),
        (ValueError, "window", (0, 1, 0)),
        (TypeError, "window", (0, 1, None)),
        (TypeError, "seed", (None, 1, 1)),
        (ValueError, "seed", (-1, 1, 1)),
    ],
)
def test_blocks_check_their_arguments(error, match, arguments):
    with pytest.raises(error, match=match):
        BlockShuffleOrderSampler(*arguments)


def test_states_of_blocks_do_not_depend_on_the_byte_order():
    sampler = BlockShuffleOrderSampler(7, [3, 5, 9], 2)
    other = copy.copy(sampler)
    other._ends = sampler._ends.astype(sampler._ends.dtype.newbyteorder())
    assert other.arguments() == sampler.arguments()


@pytest.mark.parametrize(
    ("wrong", "error"), [(None, TypeError), ("1", TypeError), (-1, ValueError)]
)
def test_seeds_are_checked(wrong, error):
    with pytest.raises(error, match="seed"):
        VirtualShuffleOrderSampler(wrong)
    for several in ([wrong], []):
        with pytest.raises((TypeError, ValueError), match=r"^random_state must "):
            ShuffleOrderSampler(several)


def test_weights_must_be_those_of_the_dataset():
    with pytest.raises(ValueError, match="23 weights"):
        SerialIterator(range(22), 4, order_sampler=WeightedOrderSampler(WEIGHTS, 0))


def test_a_dataset_that_has_become_shorter_is_named() -> None:
    class Shrinking:
        n = 10

        def __len__(self) -> int:
            return self.n

        def __getitem__(self, i: int) -> int:
            return i

    dataset = Shrinking()
    with SerialIterator(dataset, 5, order_sampler=ShuffleOrderSampler()) as iterator:
        next(iterator)
        dataset.n = 3
        message = r"10 indices 0 \.\. 9, and the dataset has 3 examples now: .* shorter .*reset\(\)"
        with pytest.raises(ValueError, match=message):
            for _ in range(2):
                next(iterator)
        iterator.reset()
        assert set(next(iterator)) == {0, 1, 2}
