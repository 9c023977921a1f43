"""Cases of `as_jax`: ``python jax_cases.py NAME`` runs the function of that name.

Each runs in a process of its own, since JAX's threads must not live where other tests fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import logging
import os
import sys
import threading
import warnings
import weakref
from typing import Any

import jax
import numpy as np
import psutil
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from resuming import by_copy, by_dict, by_pickle, by_serializer

from fastiter import (
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
    concat_examples,
    progress,
)
from fastiter.interop import as_jax, as_torch

KINDS = {
    "serial": SerialIterator,
    "threads": MultithreadIterator,
    "processes": MultiprocessIterator,
}


class Images:
    """Example ``i`` is an image full of ``i``, and ``i``. The shared memory of a batch's images is
    a multiple of 64 bytes for each device, so JAX can share it."""

    def __init__(self, n: int = 4000) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return np.full((32, 32), i, np.float32), np.int32(i)


def sharded(*axes: str | None) -> NamedSharding:
    """Arrays over all devices, of all processes; the axis at the place of "data" is divided."""
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec(*axes))


def made(kind: str, dataset: Any = None, batch_size: int = 4, **arguments: Any) -> Any:
    """An iterator in order, with workers that start before JAX has threads."""
    if kind == "processes":
        arguments = {"n_processes": 2, **arguments}
    arguments = {"shuffle": False, "converter": concat_examples, **arguments}
    iterator = KINDS[kind](Images() if dataset is None else dataset, batch_size, **arguments)
    if kind == "processes":
        iterator.start()
    return iterator


def numbers(batch: Any) -> list[int]:
    """The examples of a batch of `Images`, whose every pixel is checked."""
    x, y = batch
    assert isinstance(x, jax.Array)
    assert isinstance(y, jax.Array)
    found = np.asarray(y).tolist()
    assert (np.asarray(x) == np.array(found, np.float32)[:, None, None]).all()
    return found  # type: ignore[no-any-return]


def is_shared(address: int) -> bool:
    """Whether the memory at an address is shared with other processes."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, access = line.split()[:2]
            start, end = (int(number, 16) for number in span.split("-"))
            if start <= address < end:
                return access[3] == "s"
    raise AssertionError("no memory is mapped there")


@contextlib.contextmanager
def raises(kind: type[BaseException], *texts: str) -> Any:
    try:
        yield
    except kind as error:
        assert type(error) is kind, repr(error)
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


# ---- memory


def arrays_stay_what_they_were() -> None:
    inner = [made("processes", n_prefetch=1) for _ in range(2)]
    for iterator, sharding in zip(inner, (None, sharded("data")), strict=True):
        with iterator, as_jax(iterator, sharding) as batches:
            held = [next(batches) for _ in range(60)]
            for _ in range(300):
                next(batches)
        gc.collect()
        for k, batch in enumerate(held):
            assert numbers(batch) == list(range(4 * k, 4 * k + 4))


def slots_come_back() -> None:
    inner = [made("processes", n_prefetch=1) for _ in range(2)]
    sums = jax.jit(lambda x: x.sum((1, 2)))
    for iterator, sharding in zip(inner, (None, sharded("data")), strict=True):
        seen = set()
        with as_jax(iterator, sharding) as batches:
            for k in range(200):
                x, _ = next(batches)
                assert np.asarray(sums(x)).tolist() == [1024.0 * i for i in range(4 * k, 4 * k + 4)]
                if k >= 20:  # the first batches tell what the examples are like
                    seen |= {shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards}
            assert iterator.stats().copied_out == 0
            assert all(map(is_shared, seen))
        assert len(seen) < 12 * len(x.addressable_shards)


def donated_arrays_give_right_results() -> None:
    step = jax.jit(lambda x, y: (x + 1, y), donate_argnums=(0, 1))
    with as_jax(made("processes", n_prefetch=1)) as batches:
        results = [step(*next(batches))[0] for _ in range(100)]
    for k, result in enumerate(results):
        assert np.asarray(result)[:, 0, 0].tolist() == list(range(4 * k + 1, 4 * k + 5))


def nothing_is_left_after_the_end() -> None:
    arrays: list[Any] = []

    class Batch(np.ndarray):
        """An array of which it can be told when it dies."""

    def convert(examples: list[Any]) -> Any:
        batch = np.arange(1000, dtype=np.float32).view(Batch)
        arrays.append(weakref.ref(batch))
        return {"x": batch}

    iterator = made("processes")
    n_descriptors = len(os.listdir("/proc/self/fd"))
    batches = as_jax(SerialIterator([0] * 100, 10, converter=convert))
    kept = [next(batches)["x"] for _ in range(3)]
    assert len(arrays) == 4
    batches.finalize()
    del kept
    jax.device_put(np.zeros(1)).block_until_ready()  # JAX drops arrays of NumPy in its calls
    gc.collect()
    assert [array() for array in arrays] == [None] * 4
    with raises(RuntimeError, "finalized"):
        next(batches)
    with as_jax(iterator) as batches:
        kept = [next(batches) for _ in range(5)]
        assert psutil.Process().children()
    assert psutil.Process().children() == []
    with raises(RuntimeError, "finalized"):
        next(batches)
    assert len(os.listdir("/proc/self/fd")) <= n_descriptors
    assert numbers(kept[4]) == [16, 17, 18, 19]
    global at_exit
    at_exit = as_jax(made("serial")), kept  # ends silently with the program
    next(at_exit[0])


# ---- one batch ahead


def the_next_transfer_begins_before_a_batch_is_returned() -> None:
    events: list[str] = []
    device_put = jax.device_put

    def put(array: Any) -> Any:
        events.append(f"transfer {int(array[0])}")
        return device_put(array)

    jax.device_put = put

    class Noted:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> Any:
            events.append(f"fetch {i}")
            return np.float32(i)

    for k, batch in enumerate(as_jax(made("serial", Noted(), 1, repeat=False))):
        assert int(batch[0]) == k
        events.append(f"return {k}")
    expected = ["fetch 0", "transfer 0"]
    for k in range(8):
        expected += [f"fetch {k + 1}", f"transfer {k + 1}"] * (k < 7) + [f"return {k}"]
    assert events == expected
    events.clear()
    batches = as_jax(np.full(1, Noted()[i]) for i in range(8))
    assert [int(next(batches)[0]) for _ in range(2)] == [0, 1]
    assert events == ["fetch 0", "transfer 0", "fetch 1", "transfer 1"]


POSITION = ["epoch", "is_new_epoch", "epoch_detail", "previous_epoch_detail", "current_position"]


def attributes_are_those_of_the_batch_returned() -> None:
    for kind in KINDS:
        plain = made("serial", Images(10), 4)
        iterator = made(kind, Images(10), 4)
        with as_jax(iterator) as batches:
            for _ in range(12):
                assert numbers(next(batches)) == next(plain)[1].tolist()
                for name in POSITION:
                    assert getattr(batches, name) == getattr(plain, name), name
                    assert getattr(iterator, name) == getattr(plain, name), name
            assert batches.iterator is iterator
            assert iterator.stats().batches == 12
            assert len(batches) == 3


def states_are_those_of_the_batch_returned() -> None:
    def shuffled(kind: str) -> Any:
        sampler = ShuffleOrderSampler(3)
        return made(kind, Images(10), shuffle=None, order_sampler=sampler)

    for kind in KINDS:
        plain = shuffled("serial")
        expected = [next(plain)[1].tolist() for _ in range(20)]
        batches = as_jax(shuffled(kind))
        assert [numbers(next(batches)) for _ in range(2)] == expected[:2]
        for k in range(2, 6):
            for how in (by_dict, by_serializer, by_copy, by_pickle):
                resumed = how(batches, as_jax(shuffled(kind)))
                next_batches = [numbers(next(resumed)) for _ in range(7)]
                assert next_batches == expected[k : k + 7], (kind, k, how)
                resumed.finalize()
            assert numbers(next(batches)) == expected[k]
        state = batches.state_dict()
        assert [numbers(next(batches)) for _ in range(2)] == expected[6:8]
        batches.load_state_dict(state)  # what is ahead is dropped
        assert [numbers(next(batches)) for _ in range(2)] == expected[6:8]
        batches.iterator.load_state_dict(state)
        assert [numbers(next(batches)) for _ in range(2)] == expected[6:8]
        # A wrapper that goes takes no batch with it.
        assert [numbers(next(as_jax(batches.iterator))) for _ in range(3)] == expected[8:11]
        batches.finalize()


class Counting:
    """An iterator of another library, with attributes and a state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.state = {"n": 0}

    repeat = False

    @property
    def epoch(self) -> int:
        return int(self.state["n"] >= 5)

    def __next__(self) -> Any:
        if self.state["n"] == 5:
            raise StopIteration
        self.state["n"] += 1
        if self.state["n"] == 4:
            raise OSError("the fourth batch")
        return np.full(2, self.state["n"]), "text"

    def state_dict(self) -> Any:
        return self.state  # which changes later

    def load_state_dict(self, state: Any) -> None:
        self.state = dict(state)


def iterators_of_others_are_followed_too() -> None:
    batches = as_jax(Counting())
    for n in (1, 2, 3):
        x, text = next(batches)
        assert x.tolist() == [n, n]
        assert text == "text"
        assert batches.state_dict() == {"n": n}
    with raises(OSError, "the fourth batch"):
        next(batches)
    assert batches.epoch == 0
    assert next(batches)[0].tolist() == [5, 5]
    assert batches.epoch == 1
    with raises(StopIteration):
        next(batches)
    batches.load_state_dict({"n": 1})
    assert next(batches)[0].tolist() == [2, 2]
    batches.reset()
    assert next(batches)[0].tolist() == [1, 1]
    with raises(TypeError, "no __next__"):
        as_jax(3)
    for arrays in ([np.zeros(1), np.ones(2)], iter([np.zeros(1), np.ones(2)])):
        assert [x.tolist() for x in as_jax(arrays)] == [[0], [1, 1]]
    shown = progress(as_jax(made("serial", Images(8), repeat=False)), file=io.StringIO())
    assert [numbers(batch) for batch in shown] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def batches_of_torch_loaders_are_taken() -> None:
    import torch

    dataset = [(torch.full((2,), float(i)), i, str(i)) for i in range(8)]
    loader = torch.utils.data.DataLoader(dataset, 4)
    for batches in (as_jax(iter(loader)), *[as_jax(loader)] * 2):
        first, second = batches
        assert first[0].tolist() == [[i, i] for i in range(4)]
        assert second[1].tolist() == [4, 5, 6, 7]
        assert tuple(second[2]) == ("4", "5", "6", "7")
    half = iter([torch.ones(4, dtype=torch.bfloat16)])
    (array,) = as_jax(half, sharded("data"))
    assert (array.dtype, len(array.addressable_shards)) == (jax.numpy.bfloat16, 2)
    batches = as_jax(as_torch(made("serial")))  # of another adapter
    assert [numbers(next(batches)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches.current_position == 8


def a_torch_loader_is_resumed_in_mid_epoch() -> None:
    import torch

    from fastiter.torch import DataLoader

    def loader(num_workers: int) -> Any:
        generator = torch.Generator().manual_seed(0)
        return DataLoader(Images(40), 4, shuffle=True, generator=generator, num_workers=num_workers)

    plain = loader(0)
    expected = [y.tolist() for _ in range(2) for _, y in plain]
    batches = as_jax(loader(2))
    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if len(held) == 4:
            break
    state = batches.state_dict()
    for num_workers in (1, 0):
        resumed = as_jax(loader(num_workers))
        resumed.load_state_dict(state)
        assert len(resumed) == 10
        rest = [numbers(batch) for _ in range(2) for batch in resumed]
        assert [numbers(batch) for batch in held] + rest == expected


def an_interrupt_loses_nothing() -> None:
    class Interrupted:
        def __init__(self) -> None:
            self.at = 9

        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int) -> Any:
            if i == self.at:
                self.at = -1
                raise KeyboardInterrupt
            return np.zeros((1, 1), np.float32) + i, i

    device_put = jax.device_put

    def interrupted_put(array: Any) -> Any:
        jax.device_put = device_put
        raise KeyboardInterrupt

    batches = as_jax(made("serial", Interrupted()))
    assert numbers(next(batches))[0] == 0
    state = batches.state_dict()
    with raises(KeyboardInterrupt):  # while the third batch is fetched
        next(batches)
    assert batches.state_dict() == state
    assert [numbers(next(batches))[0] for _ in range(4)] == [4, 8, 12, 16]
    state = batches.state_dict()
    jax.device_put = interrupted_put
    with raises(KeyboardInterrupt):  # while the transfer of the batch ahead begins
        next(batches)
    assert batches.state_dict() == state
    assert [numbers(next(batches))[0] for _ in range(4)] == [20, 24, 28, 32]


def threads_share_an_epoch() -> None:
    with as_jax(made("threads", Images(400), repeat=False)) as batches:
        found: list[int] = []

        def take() -> None:
            with contextlib.suppress(StopIteration):
                while True:
                    found.extend(numbers(next(batches)))

        takers = [threading.Thread(target=take) for _ in range(4)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
    assert sorted(found) == list(range(400))


def each_for_is_an_epoch() -> None:
    batches = as_jax(made("serial", Images(10), repeat=False))
    for _ in range(2):
        assert [len(y) for _, y in batches] == [4, 4, 2]
        assert batches.epoch == 1
    assert numbers(next(iter(batches))) == [0, 1, 2, 3]
    assert [len(y) for _, y in batches] == [4, 4, 2]  # also after a loop that was left
    endless = as_jax(made("serial", Images(10)))
    for _ in endless:
        break
    assert numbers(next(iter(endless))) == [4, 5, 6, 7]
    with raises(StopIteration):
        for _ in range(4):
            next(batches)


# ---- layouts


def global_arrays_are_divided_over_devices() -> None:
    first, second = jax.devices()
    x, y = next(as_jax(made("serial"), sharded("data")))
    assert x.sharding.is_equivalent_to(sharded("data"), 3)
    assert {s.device: np.asarray(s.data).tolist() for s in y.addressable_shards} == {
        first: [0, 1],
        second: [2, 3],
    }
    assert numbers((x, y)) == [0, 1, 2, 3]
    array = next(as_jax(iter([np.arange(6).reshape(3, 2)]), sharded(None, "data")))
    assert [s.data.shape for s in array.addressable_shards] == [(3, 1), (3, 1)]
    array = next(as_jax(iter([np.arange(3)]), SingleDeviceSharding(second)))
    assert array.devices() == {second}
    assert next(as_jax(iter([np.arange(3)]))).devices() == {first}


def a_batch_that_does_not_divide_is_an_error_in_its_turn() -> None:
    batches = as_jax(made("serial", Images(7), repeat=False), sharded("data"))
    assert numbers(next(batches)) == [0, 1, 2, 3]
    with raises(ValueError, "an array of shape (3, 32, 32)", "batch_size", "repeat=False"):
        next(batches)
    with raises(StopIteration):
        next(batches)
    with raises(ValueError, "an array of shape ()"):
        next(as_jax(iter([np.array(1.0)]), sharded("data")))
    for wrong in (jax.devices()[0], PartitionSpec("data"), "data"):
        with raises(TypeError, "sharding must be a jax.sharding.Sharding"):
            as_jax(made("serial"), wrong)


def two_processes_hold_a_part_each(port: str, rank: str) -> None:
    faulthandler.dump_traceback_later(60, exit=True)  # one that fails leaves the other waiting
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # the default of newer versions
    jax.distributed.initialize(f"localhost:{port}", 2, int(rank))
    assert (len(jax.devices()), len(jax.local_devices())) == (4, 2)
    arguments = {"order_sampler": ShuffleOrderSampler(3), "rank": int(rank), "num_ranks": 2}
    iterator = made("serial", Images(32), shuffle=None, repeat=False, **arguments)
    total = jax.jit(lambda x: x.sum(), out_shardings=sharded())
    seen = []
    for x, y in as_jax(iterator, sharded("data")):
        assert (x.shape, y.shape) == ((8, 32, 32), (8,))
        assert len(y.addressable_shards) == 2
        seen += [i for shard in y.addressable_shards for i in np.asarray(shard.data).tolist()]
        assert float(total(y)) == float(total(x)) / 1024
    # No process_allgather: its two groups of devices connect at a time, and Gloo may hang in that.
    print("seen", *seen, flush=True)
    jax.distributed.shutdown()


# ---- what becomes an array


def only_arrays_of_numbers_are_transferred() -> None:
    import ml_dtypes

    def convert(examples: list[int]) -> Any:
        n = np.array(examples)
        return {
            "nested": [(n.astype(np.int16), [n > 1])],
            "big-endian": n.astype(">f4"),
            "reversed": n.astype(np.uint8)[::-1],
            "bfloat16": n.astype(ml_dtypes.bfloat16),
            "complex": n.astype(np.complex64),
            "strings": n.astype(str),
            "objects": np.array([{}, None]),
            "times": n.astype("M8[s]"),
            "durations": n.astype("m8[s]"),
            "records": np.zeros(2, [("a", "i4")]),
            "masked": np.ma.masked_greater(n, 0),
            "empty": np.zeros((0, 3), np.float32),
            "scalar": np.float32(2),
            "text": "text",
            "number": 3,
            "jax": jax.numpy.ones(2),
        }

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(as_jax(SerialIterator([0, 1, 2, 3], 2, shuffle=False, converter=convert)))
    ((narrow, (flags,)),) = batch["nested"]
    expected = {
        "narrow": (narrow, "int16", [0, 1]),
        "flags": (flags, "bool", [False, False]),
        "big-endian": (batch["big-endian"], "float32", [0, 1]),
        "reversed": (batch["reversed"], "uint8", [1, 0]),
        "bfloat16": (batch["bfloat16"], "bfloat16", [0, 1]),
        "complex": (batch["complex"], "complex64", [0, 1]),
        "empty": (batch["empty"], "float32", []),
        "jax": (batch["jax"], "float32", [1, 1]),
    }
    for name, (array, dtype, values) in expected.items():
        assert isinstance(array, jax.Array), name
        assert array.dtype.name == dtype, name
        assert array.tolist() == values, name
    for name in ("strings", "objects", "times", "durations", "records", "masked"):
        assert isinstance(batch[name], np.ndarray), name
    assert type(batch["scalar"]) is np.float32
    assert (batch["text"], batch["number"]) == ("text", 3)
    longdoubles = as_jax(iter([np.zeros(2, np.longdouble), np.zeros(1)]))
    with raises(TypeError, "takes no array of shape (2,) and dtype", "astype(numpy.float32)"):
        next(longdoubles)
    assert next(longdoubles).shape == (1,)


def numbers_of_64_bits_are_narrowed_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sharding in (None, sharded("data")):
            x, y = next(as_jax(iter([(np.arange(4), np.arange(4.0))]), sharding))
            assert (x.dtype, y.dtype) == (np.int32, np.float32)
        jax.config.update("jax_enable_x64", True)
        x, y = next(as_jax(iter([(np.arange(4) << 40, np.arange(4.0))])))
    assert (x.dtype, y.dtype) == (np.int64, np.float64)
    assert x.tolist() == [0, 1 << 40, 2 << 40, 3 << 40]


def lists_of_examples_are_joined() -> None:
    for kind in KINDS:
        with as_jax(made(kind, converter=None)) as batches:
            for k in range(5):
                assert numbers(next(batches)) == list(range(4 * k, 4 * k + 4))


def errors_come_in_the_turn_of_their_batch() -> None:
    class Failing(Images):
        def __getitem__(self, i: int) -> Any:
            if i == 5:
                raise OSError("example 5")
            return super().__getitem__(i)

    logging.getLogger("fastiter").setLevel(logging.ERROR)
    for kind in ("serial", "threads"):
        with as_jax(made(kind, Failing())) as batches:
            assert numbers(next(batches)) == [0, 1, 2, 3]
            assert batches.current_position == 4
            with raises(OSError, "example 5"):
                next(batches)
            assert batches.current_position == 8
            assert numbers(next(batches)) == [8, 9, 10, 11]
        with as_jax(made(kind, Failing(), on_error="skip", skip_limit=None)) as batches:
            assert numbers(next(batches)) == [0, 1, 2, 3]
            assert batches.skipped == []
            assert numbers(next(batches)) == [4, 6, 7]
            assert [skip.index for skip in batches.skipped] == [5]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
