"""torch's tensors as examples: how they travel, and how they are joined.

Where processes are forked nothing was computed by torch before, so that its threads do not live.
"""

from __future__ import annotations

import functools
import gc
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tensors_of import Tensors, Views, address

from fastiter import MultithreadIterator, SerialIterator, concat_examples
from fastiter.interop import as_torch

torch = pytest.importorskip("torch", reason="torch is not installed")
data = torch.utils.data


def test_tensors_lie_in_columns(processes):
    iterator = processes(Tensors())
    for _ in range(4):
        next(iterator)
    batch = next(iterator)
    places = [address(x) for x, _, _ in batch]
    assert np.diff(places).tolist() == [24] * 3
    for row, (x, i, j) in enumerate(batch):
        assert type(x) is type(i) is torch.Tensor
        assert (x.dtype, i.dtype, i.ndim, type(j)) == (torch.float32, torch.int64, 0, int)
        assert x.tolist() == [[16 + row] * 3] * 2
        assert int(i) == j == 16 + row


def test_converted_tensors_are_columns(processes):
    iterator = processes(Tensors(), converter=concat_examples)
    for k in range(9):
        x, i, j = next(iterator)
        assert (type(x), x.dtype, i.dtype) == (np.ndarray, np.float32, np.int64)
        assert i.tolist() == j.tolist() == x[:, 1, 2].tolist() == list(range(4 * k, 4 * k + 4))


def test_a_part_of_a_large_tensor_travels_alone(processes):
    dataset = Views(100_000)
    iterator = processes(dataset, 64)
    for _ in range(3):
        batch = next(iterator)
    assert sum(x.untyped_storage().nbytes() for x in batch) == 64 * 24
    assert [int(x[0, 0]) for x in batch] == list(range(128, 192))


class Ready(data.Dataset):
    """The same tensors in each epoch, with how many of them have a dictionary."""

    def __init__(self) -> None:
        self.tensors = [torch.tensor([i]) for i in range(256)]

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.tensors[i], sum(dict in map(type, gc.get_referents(x)) for x in self.tensors)


def test_a_tensor_gets_no_dictionary(processes):
    """Only those of the first batches do, before the columns are known."""
    iterator = processes(Ready())
    *_, last = itertools.islice(iterator, 128)
    assert all(int(count) < 64 for _, count in last)


class Varied(data.Dataset):
    """Tensors that are no ordinary ones of one shape."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, Any]:
        named = torch.tensor([i])
        named.name_of_mine = "i"
        return {
            "ragged": torch.arange(i % 5),
            "transposed": torch.arange(6).reshape(2, 3).T,
            "half": torch.full((2,), i, dtype=torch.bfloat16),
            "gradient": torch.tensor([float(i)], requires_grad=True),
            "parameter": torch.nn.Parameter(torch.tensor([float(i)])),
            "expanded": torch.tensor([i]).expand(1000),
            "conjugated": torch.tensor([1j * i]).conj(),
            "sparse": torch.eye(2).to_sparse(),
            "nested": [torch.tensor([i]), {"again": torch.tensor(i)}],
            "mixed": torch.tensor(i) if i % 2 else i,
            "named": named,
        }


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_other_tensors_arrive_as_they_are(processes, context):
    dataset = Varied()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has its say about sparse tensors
        iterator = processes(dataset, context=context, n_processes=1)
        for number, batch in zip(range(6), iterator, strict=False):
            for row, found in enumerate(batch):
                expected = dataset[4 * number + row]
                assert list(found) == list(expected)
                for name, tensor in expected.items():
                    check_same(found[name], tensor)
                assert found["gradient"].requires_grad
                assert type(found["parameter"]) is torch.nn.Parameter
                assert found["named"].name_of_mine == "i"


def named() -> Any:
    tensor = torch.tensor([7.0])
    tensor.name_of_mine = "i"
    return tensor


# One field of float32 (1,) has a column after the first batch. These do not fit, or have to be
# copied with care: their memory does not hold their values, or they are more than these.
ODD: dict[str, Callable[[], Any]] = {
    "negated lazily": lambda: torch.tensor([1 + 2j]).conj().imag,
    "of two dimensions": lambda: torch.tensor([[7.0]]),
    "longer": lambda: torch.tensor([7.0, 8.0]),
    "empty": lambda: torch.tensor([]),
    "strided": lambda: torch.arange(6.0)[1:2:2].as_strided((1,), (3,), 4),
    "of another dtype": lambda: torch.tensor([7], dtype=torch.int32),
    "bfloat16": lambda: torch.tensor([7.0], dtype=torch.bfloat16),
    "complex": lambda: torch.tensor([1 + 2j]).conj(),
    "with a gradient": lambda: torch.tensor([7.0], requires_grad=True),
    "of a subclass": lambda: torch.nn.Parameter(torch.tensor([7.0])),
    "sparse": lambda: torch.tensor([7.0]).to_sparse(),
    "named": named,
    "an array": lambda: np.array([7], np.float32),
}


class Changing(data.Dataset):
    """The examples of the third batch are odd."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 16

    def __getitem__(self, i: int) -> Any:
        return self.make() if 8 <= i < 12 else torch.tensor([float(i)])


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", ODD)
def test_tensors_that_do_not_fit_the_column(processes, kind):
    iterator = processes(Changing(ODD[kind]), n_processes=1, n_prefetch=1)
    for _ in range(2):
        next(iterator)
    for found in next(iterator):
        expected = ODD[kind]()
        check_same(found, expected)
        assert getattr(found, "requires_grad", False) is getattr(expected, "requires_grad", False)
        assert getattr(found, "name_of_mine", None) == getattr(expected, "name_of_mine", None)
    assert [tensor.tolist() for tensor in next(iterator)] == [[12], [13], [14], [15]]


class Reusing(data.Dataset):
    """Resizes a tensor after it was given."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.tensor = torch.empty(0)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> Any:
        if i > 48:
            self.tensor.resize_(1_000)
        self.tensor = torch.full(self.shape, i)
        return self.tensor, torch.full((i % 3,), i)


def test_a_tensor_is_the_datasets_own_after_it_was_written(processes):
    """An array of it would have fixed its size: none is made."""
    for batch in processes(Reusing((2, 3)), n_processes=1, repeat=False):
        last = [int(tensor[1, 2]) for tensor, _ in batch]
    assert last == [60, 61, 62, 63]


def check_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert torch.equal(found.to_dense(), expected.to_dense())
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
    elif isinstance(expected, list):
        for part, other in zip(found, expected, strict=True):
            check_same(part, other)
    elif isinstance(expected, dict):
        check_same(list(found.values()), list(expected.values()))
    else:
        assert found == expected


@pytest.mark.parametrize("kind", ["serial", "threads", "processes"])
def test_ragged_tensors_are_padded(processes, kind):
    dataset = [(torch.arange(i % 5 + 1), i) for i in range(24)]
    pad = functools.partial(concat_examples, padding=-1, return_lengths=True)
    arguments: dict[str, Any] = {"shuffle": False, "converter": pad}
    makers: dict[str, Callable[..., Any]] = {
        "serial": SerialIterator,
        "threads": MultithreadIterator,
        "processes": processes,
    }
    iterator = makers[kind](dataset, 4, **arguments)
    for number in range(6):
        tokens, labels, lengths = next(iterator)
        expected = [i % 5 + 1 for i in range(4 * number, 4 * number + 4)]
        assert lengths.tolist() == expected
        assert tokens.shape == (4, max(expected))
        assert tokens[1].tolist() == [*range(expected[1]), *[-1] * (max(expected) - expected[1])]
        assert labels.tolist() == list(range(4 * number, 4 * number + 4))
    iterator.finalize()


def test_threads_write_tensors_in_place():
    with MultithreadIterator(
        Tensors(), 4, shuffle=False, n_threads=2, converter=concat_examples
    ) as iterator:
        for k in range(9):
            x, i, j = next(iterator)
            assert (type(x), x.dtype, i.dtype) == (np.ndarray, np.float32, np.int64)
            assert i.tolist() == j.tolist() == x[:, 1, 2].tolist() == list(range(4 * k, 4 * k + 4))


def test_workers_that_are_spawned_share_a_datasets_tensors(processes):
    dataset = Views(200_000)
    batch = next(processes(Where(dataset), context="spawn", n_processes=1))
    # A private mapping of the image, not a copy on the heap.
    assert [where for _, where in batch] == [True] * 4


class Where(data.Dataset):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> tuple[Any, bool]:
        place = address(self.dataset.data)
        with open("/proc/self/maps") as maps:
            for line in maps:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                if begin <= place < end:
                    is_ours = "/memfd:fastiter" in line or "/dev/shm/fastiter-" in line
                    return self.dataset[i], is_ours
        raise LookupError(place)


def test_gradients_are_left_behind_when_tensors_are_joined():
    rows = [torch.tensor([1.0, i], requires_grad=True) for i in range(3)]
    conjugates = [torch.tensor([1 + 2j]).conj()] * 2 + [torch.tensor([3.0])]
    assert concat_examples(rows).tolist() == [[1, 0], [1, 1], [1, 2]]
    assert concat_examples(conjugates).tolist() == [[1 - 2j], [1 - 2j], [3]]


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (torch.zeros(3, dtype=torch.bfloat16), r"torch\.bfloat16.*\.float\(\)"),
        (torch.eye(2).to_sparse(), r"torch\.sparse_coo.*\.to_dense\(\)"),
        (torch.zeros(2, device="meta"), r"'meta'.*\.cpu\(\)"),
    ],
)
def test_tensors_that_numpy_lacks_are_named(tensor, named):
    wanted = f"(?s)NumPy cannot represent.*{named}.*without a converter.*as_torch"
    with pytest.raises(TypeError, match=wanted):
        concat_examples([tensor, tensor])
    joined = next(as_torch(SerialIterator([tensor] * 4, 4)))
    assert (joined.shape, joined.dtype) == ((4, *tensor.shape), tensor.dtype)
