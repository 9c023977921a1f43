"""Profilers and libraries that reach into torch's iterators, with both classes of loaders."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_profile_names_the_steps_as_torch_does(loader_class: Any, num_workers: int) -> None:
    loader = loader_class(range(4), 2, num_workers=num_workers)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert len(list(loader)) == 2
    kind = "MultiProcessing" if num_workers else "SingleProcess"
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts[f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"] == 3


class Numbered(torch_data.Dataset[tuple[int, int]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, 10 * index


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_next_of_torchs_iterators_that_a_program_replaces(
    monkeypatch: pytest.MonkeyPatch, loader_class: Any, options: Any
) -> None:
    """By a function of its own, as InfoBatch, or one around torch's."""
    of_torch, seen = _BaseDataLoaderIter.__next__, []

    def examples_only(iterator: Any) -> Any:
        indices, examples = iterator._next_data()
        seen.append(indices.tolist())
        return examples.tolist()

    def listed(iterator: Any) -> Any:
        return of_torch(iterator)[1].tolist()

    loader = loader_class(Numbered(), 2, **options)
    for function in (examples_only, listed):
        monkeypatch.setattr(_BaseDataLoaderIter, "__next__", function)
        assert [*loader, *loader_class(Numbered(), 3)] == [[0, 10], [20, 30], [0, 10, 20], [30]]
    assert seen == [[0, 1], [2, 3], [0, 1, 2], [3]]
    monkeypatch.undo()
    assert [len(batch) for batch in loader_class(range(4), 2)] == [2, 2]
    assert [batch[1].tolist() for batch in loader] == [[0, 10], [20, 30]]
    loader._iterator = None


KEPT = """
import sys, torch
from fastiter.torch import DataLoader

torch.kept = [iter(DataLoader(range(8), 2, num_workers=n)) for n in (0, 1)], [*sys.modules.values()]
for iterator in torch.kept[0]:
    next(iterator)
"""


def test_iterators_that_a_library_keeps_until_the_interpreter_has_ended() -> None:
    command = [sys.executable, "-c", KEPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


COMPILED = """
import sys, torch
import torch.utils.data as torch_data
from fastiter.torch import DataLoader, as_default

numbers = torch_data.TensorDataset(torch.arange(12.0))
num_workers = int(sys.argv[1])


def sum_of(loader):
    total = 0.0
    for (batch,) in loader:
        total = total + batch.sum()
    return total


def sum_of_new():
    return sum_of(torch_data.DataLoader(numbers, 4, num_workers=num_workers))


keeps = num_workers > 0
loader = DataLoader(numbers, 4, num_workers=num_workers, persistent_workers=keeps)
begun = iter(loader)
sums = [torch.compile(sum_of, backend="eager")(begun)]
sums += [torch.compile(sum_of, backend="eager")(loader) for _ in range(2)]
with as_default():
    sums += [torch.compile(sum_of_new, backend="eager")()]
assert sums == [66.0] * 4, sums
"""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loops_in_functions_that_torch_compiles(num_workers: int) -> None:
    if not hasattr(torch._C._dynamo.eval_frame, "_FrameExecStrategy"):
        pytest.skip("this torch cannot leave a function, and what it calls, to Python")
    # The latter is torch's under CPython 3.13.0.
    warnings = ("-W", "error:Dynamo:UserWarning", "-W", "ignore:Guards may run slower")
    command = [sys.executable, *warnings, "-c", COMPILED, str(num_workers)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
