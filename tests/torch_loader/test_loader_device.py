"""Batches on a device: their trees, and on a GPU the copies that the loader makes ahead."""

from __future__ import annotations

import copy
import gc
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from inside import ring_of
from outside import wait_until

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn.utils.rnn import PackedSequence, pack_sequence  # noqa: E402

from fastiter.datasets import StreamDataset  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402
from fastiter.torch._device import copies  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
on_gpu = pytest.mark.gpu(library="torch", real="the copies are torch's")

META = torch.device("meta")
ROW = 30_000  # numbers: few enough for torch to use no threads, which fight for the cores


class Pair(NamedTuple):
    image: Any
    label: Any


class Trees:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return {"pair": Pair(torch.full((3,), index), index), "texts": [f"text {index}", [1.5]]}


class Own:
    """An object with a `to` of its own."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def to(self, device: torch.device) -> Own:
        return Own(self.rows.to(device))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_tensors_in_containers_of_any_depth_are_there(n_workers):
    for batch in DataLoader(Trees(), 4, num_workers=n_workers, device="meta"):
        assert type(batch["pair"]) is Pair
        image, label = batch["pair"]
        (texts, (numbers,)) = batch["texts"]
        assert [image.device, label.device, numbers.device] == [META] * 3
        assert (image.shape, numbers.dtype) == ((4, 3), torch.float64)
        assert len(texts) == 4 and all(text.startswith("text ") for text in texts)


def packed(rows: list[torch.Tensor]) -> Any:
    rows = [row["pair"].image for row in rows]
    return OrderedDict(
        packed=pack_sequence(rows),
        own=Own(torch.stack(rows)),
        kind=torch.Tensor,
        none=None,
        size=rows[0].shape,
    )


@pytest.mark.parametrize("n_workers", [0, 2])
def test_objects_that_move_themselves_and_other_values(n_workers):
    batch = next(
        iter(DataLoader(Trees(), 4, num_workers=n_workers, collate_fn=packed, device=META))
    )
    assert type(batch) is OrderedDict and isinstance(batch["packed"], PackedSequence)
    assert batch["packed"].data.device == batch["own"].rows.device == META
    assert batch["packed"].batch_sizes.device.type == "cpu"
    assert batch["kind"] is torch.Tensor and batch["none"] is None
    assert batch["size"] == (3,) and type(batch["size"]) is torch.Size


class Both(tuple):
    def __new__(cls, first: Any, second: Any) -> Any:
        return super().__new__(cls, (first, second))

    def __reduce__(self) -> Any:
        return Both, tuple(self)


class Named(list):
    name = ""


def of_own_classes(rows: list[Any]) -> Any:
    images = torch.stack([row["pair"].image for row in rows])
    named = Named([images, 3])
    named.name = "images"
    return Both(images, "text"), named, torch.max(images, 1)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_lists_and_tuples_of_other_classes_keep_these(n_workers):
    loader = DataLoader(Trees(), 4, num_workers=n_workers, collate_fn=of_own_classes, device=META)
    for both, named, largest in loader:
        assert type(both) is Both and (both[0].device, both[1]) == (META, "text")
        assert type(named) is Named and (named[0].device, named[1:]) == (META, [3])
        assert named.name == "images"
        assert type(largest) is torch.return_types.max and largest.indices.device == META


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_batches_stay_on_the_host(device):
    for batch in DataLoader(Trees(), 4, device=device):
        assert batch["pair"].image.device.type == "cpu"


@pytest.mark.parametrize("n_workers", [0, 2])
def test_streams_and_indices(n_workers):
    stream = StreamDataset(range(3), lambda shard: range(3 * shard, 3 * shard + 3))
    loader = DataLoader(stream, 2, num_workers=n_workers, device="meta")
    assert [batch.device for batch in loader] == [META] * 5
    loader = DataLoader(range(8), 4, num_workers=n_workers, device="meta", return_indices=True)
    for number, (batch, indices) in enumerate(loader):
        assert batch.device == META
        assert indices.tolist() == loader.indices == [4 * number + row for row in range(4)]


@pytest.mark.parametrize("device", [-1, 128, 2**70])
def test_a_number_that_no_device_has(device):
    """torch takes some of them for others."""
    with pytest.raises(ValueError, match=rf"^device must be at .*, not {device}$"):
        DataLoader(range(8), 4, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")
@pytest.mark.parametrize("n_workers", [0, 1])
def test_without_a_gpu_the_first_next_says_so(n_workers):
    for device in ("cuda", "cuda:1", torch.device("cuda", 0)):
        loader = DataLoader(Trees(), 4, num_workers=n_workers, device=device)
        with pytest.raises(RuntimeError, match="no GPU"):
            next(iter(loader))
    with pytest.raises(RuntimeError, match=r"device=0|no GPU"):  # torch without CUDA, and with it
        next(iter(DataLoader(Trees(), 4, device=0)))


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        (ValueError, "device", {"device": "nonsense"}),
        (TypeError, "device", {"device": True}),
        (TypeError, "device", {"device": 1.5}),
        (ValueError, "n_device_prefetch", {"n_device_prefetch": 2}),
        (ValueError, "n_device_prefetch", {"n_device_prefetch": 2, "device": "cpu"}),
        (ValueError, "n_device_prefetch", {"n_device_prefetch": 0, "device": META}),
        (ValueError, "n_device_prefetch", {"device": "meta", "n_device_prefetch": -1}),
    ],
)
def test_wrong_arguments(kind, name, arguments):
    with pytest.raises(kind, match=name):
        DataLoader(Trees(), 4, **arguments)


class HostCopies(copies.DeviceCopies):
    """Copies to other memory of the host, begun and handed out as those to a GPU are."""

    begun = 0

    def begin(self, batch: Any) -> Any:
        if isinstance(batch, copies.Pending):
            return batch
        HostCopies.begun += 1
        return copies.Pending(copies.map_leaves(copy.deepcopy, batch), [], None)

    def hand_out(self, batch: Any) -> Any:
        return self.begin(batch).tree


def copied(examples: list[Any]) -> list[Any]:
    return [*examples]


@pytest.mark.parametrize(
    "collate_fn", [None, list, copied], ids=["columns", "rows", "whole batches"]
)
@pytest.mark.parametrize("arguments", [{}, {"on_error": "skip"}, {"shuffle": True}], ids=str)
def test_batches_copied_before_their_turn_keep_order_and_states(monkeypatch, collate_fn, arguments):
    """A rehearsal without a GPU: it shows what the loop does, and nothing of CUDA."""
    made: Any = HostCopies(torch.device("cuda"), 3)
    monkeypatch.setattr(copies.DeviceCopies, "of", lambda loader: made)
    HostCopies.begun = 0

    def loader() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(1)
        return DataLoader(
            range(96), 4, num_workers=2, generator=generator, collate_fn=collate_fn, **arguments
        )

    def rows(batch: Any) -> list[int]:
        return [int(row) for row in batch]

    expected = [rows(batch) for batch in loader()]
    assert sorted(row for batch in expected for row in batch) == list(range(96))
    assert HostCopies.begun == 24
    first, number = loader(), 0
    iterator = iter(first)
    # Until three are copied early: not where a policy has to decide about batches of workers.
    most = 0 if "on_error" in arguments and collate_fn is copied else 27
    while number < 5 or HostCopies.begun < most + number:
        wait_until(ring_of(iterator).ready, "a batch that is complete")
        assert rows(next(iterator)) == expected[number] == list(first.indices)
        number += 1
    second = loader()
    second.load_state_dict(first.state_dict())
    assert [rows(batch) for batch in second] == expected[number:]


# ---- on a GPU ------------------------------------------------------------------------------------


class Rows:
    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((ROW,), float(index)), index


def listed(rows: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
    return [torch.stack([row for row, _ in rows]), torch.tensor([index for _, index in rows])]


@on_gpu
@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("collate_fn", [None, listed], ids=["columns", "whole batches"])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_content_on_a_gpu_on_any_stream(n_workers, collate_fn, ahead):
    loader = DataLoader(
        Rows(), 8, num_workers=n_workers, collate_fn=collate_fn, device="cuda",
        n_device_prefetch=ahead, multiprocessing_context="forkserver" if n_workers else None,
    )  # fmt: skip
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    number = 0
    for _ in range(2):
        iterator = iter(loader)
        for number in range(80):
            stream = streams[number % 3]
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                images, indices = next(iterator)
                assert torch.cuda.current_stream() == stream
                wanted = torch.arange(8 * number, 8 * number + 8, device="cuda")
                is_right = (indices == wanted).all() & (images == wanted[:, None]).all()
                # Read on this stream: another one would not wait for it.
                assert is_right.item(), number
                assert loader.indices == wanted.tolist()
            del images, indices


@on_gpu
def test_states_on_a_gpu_count_the_batches_delivered():
    def made() -> DataLoader[Any]:
        return DataLoader(
            Rows(), 8, num_workers=2, device="cuda", n_device_prefetch=3,
            multiprocessing_context="forkserver",
        )  # fmt: skip

    loader = made()
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    other = made()
    other.load_state_dict(loader.state_dict())
    assert [int(batch[1][0]) for batch in other] == list(range(40, 640, 8))


@on_gpu
def test_memory_of_the_gpu_is_bounded():
    loader = DataLoader(
        Rows(), 8, num_workers=2, device="cuda", multiprocessing_context="forkserver"
    )
    for _ in loader:
        pass
    gc.collect()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated()
    for _ in range(2):
        for _ in loader:
            pass
    assert torch.cuda.max_memory_allocated() <= most + 8 * 4 * ROW
