"""Tensors of a dataset in workers that are not forked: those in shared memory stay shared, those in
mapped files stay mapped. A fork gives the right values."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fastiter.torch import DataLoader  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
]

METHODS = ["fork", "spawn", "forkserver"]
NEW = ["spawn", "forkserver"]


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request):
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


class Shares(torch.utils.data.Dataset):
    """Holds tensors in shared memory, in many places, and writes to each."""

    def __init__(self, method: str, ends: int = 0):
        def one(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape).share_memory_()

        self.epoch = torch.tensor(0).share_memory_()
        self.deep = [{"x": (one(2), {"y": one(3)})}]
        self.whole = one(4)
        self.part = self.whole[2:]
        self.net = torch.nn.Linear(2, 2).share_memory()
        self.half = one(2).to(torch.bfloat16).share_memory_()
        self.storage = one(5).untyped_storage()
        self.private = torch.zeros(70_000)
        self.bytes = torch.arange(3).untyped_storage()
        context = multiprocessing.get_context(method)
        self.ends = context.Value("i", ends)

    def tensors(self) -> list[Any]:
        x, y = self.deep[0]["x"]
        return [x, y["y"], self.part, self.net.weight.data, self.half]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        with self.ends.get_lock():
            self.ends.value -= 1
            ends = self.ends.value >= 0
        if ends:
            os.kill(os.getpid(), signal.SIGKILL)
        for tensor in self.tensors():
            tensor.view(-1)[0] = 7
        self.storage[0] = 7
        assert self.part.data_ptr() == self.whole[2:].data_ptr()
        self.private[0] = 7
        assert self.bytes.tolist() == torch.arange(3).untyped_storage().tolist()
        return int(self.epoch) * 100 + i


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ends", [0, 2], ids=["", "restarted"])
def test_shared_tensors_stay_shared(method, strategy, ends):
    dataset = Shares(method, ends)
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": method}
    loader = DataLoader(dataset, 2, **options)
    for epoch in range(3):
        dataset.epoch.fill_(epoch)
        found = [batch.tolist() for batch in loader]
        assert found == [[100 * epoch, 100 * epoch + 1], [100 * epoch + 2, 100 * epoch + 3]]
    assert [float(tensor.view(-1)[0]) for tensor in dataset.tensors()] == [7.0] * 5
    assert dataset.whole.tolist() == [0, 0, 7, 0]
    assert dataset.storage[0] == 7
    assert float(dataset.private[0]) == 0
    assert dataset.ends.value < 0


class Many(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.tensors = [torch.full((2,), i).share_memory_() for i in range(300)]

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.tensors[i]


def test_more_descriptors_than_a_fork_server_takes():
    loader = DataLoader(Many(), 300, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(ValueError, match=r"30\d queues.*file_system.*'spawn'"):
        next(iter(loader))
    loader = DataLoader(Many(), 300, num_workers=1, multiprocessing_context="spawn")
    assert next(iter(loader))[:, 0].tolist() == list(range(300))


@pytest.mark.parametrize("method", METHODS)
def test_set_epoch_of_a_stream_reaches_persistent_workers(method):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    stream = datasets.Dataset.from_dict({"a": list(range(64))}).to_iterable_dataset(num_shards=2)
    stream = stream.shuffle(seed=0, buffer_size=16)
    options = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": method}
    loader, found = DataLoader(stream, 8, **options), []
    for epoch in range(3):
        stream.set_epoch(epoch)
        found.append([value for batch in loader for value in batch["a"].tolist()])
    stream.set_epoch(0)
    assert all(sorted(values) == list(range(64)) for values in found)
    assert found[0] != found[1] != found[2]


class Mapped(torch.utils.data.Dataset):
    def __init__(self, tensors: dict[str, torch.Tensor]):
        self.tensors = tensors

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> dict[str, Any]:
        found = {}
        for name, tensor in self.tensors.items():
            found[name] = [tensor[:3].float().sum().item(), mapped_from(tensor)]
        return found


def mapped_from(tensor: torch.Tensor) -> str:
    """Kind of the mapping in which a tensor of this process begins, and its file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, kind, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= tensor.data_ptr() < end:
            return f"{kind} {''.join(path)}"
    return ""


@pytest.mark.parametrize("method", METHODS)
def test_tensors_in_mapped_files_are_not_copied(tmp_path, method):
    path, n = str(tmp_path / "numbers.bin"), 200_000
    np.arange(n, dtype=np.int32).tofile(path)
    private = torch.from_file(path, shared=False, size=n, dtype=torch.int32)
    shared = torch.from_file(path, shared=True, size=n, dtype=torch.int32)
    written = torch.from_file(path, shared=False, size=n, dtype=torch.int32)
    written[0] = -5
    tensors = {
        "private": private,
        "shared": shared,
        "little": shared[:3],
        "columns": private.view(-1, 100)[:, :-1],
        "windows": private.unfold(0, 1025, 1),
        "words": private.view(torch.bfloat16),
        "of NumPy": torch.from_numpy(np.memmap(path, np.int32, "c")),
    }
    dataset = Mapped(tensors)
    loader = DataLoader(dataset, None, num_workers=1, multiprocessing_context=method)
    assert next(iter(loader)) == dataset[0]
    assert all("numbers.bin" in mapping for _, mapping in dataset[0].values())
    # A page that this process has written is in no file.
    loader = DataLoader(
        Mapped({"written": written}), None, num_workers=1, multiprocessing_context=method
    )
    assert next(iter(loader))["written"][0] == 1 + 2 - 5


@pytest.mark.parametrize("method", NEW)
def test_weights_of_safetensors_are_not_copied(tmp_path, method):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    path = str(tmp_path / "weights.safetensors")
    safetensors.save_file({"w": torch.arange(100_000.0).view(100, -1)}, path)
    dataset = Mapped(safetensors.load_file(path))
    loader = DataLoader(dataset, None, num_workers=1, multiprocessing_context=method)
    assert next(iter(loader)) == dataset[0]
    assert "weights.safetensors" in dataset[0]["w"][1]
