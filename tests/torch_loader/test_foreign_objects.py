"""Objects of a program whose attributes are not what they seem: in both classes of loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402


class Failing:
    """Has no further attributes, and looks for them as into a dict."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class FailingStream(Failing, torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class FailingSampler(Failing):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class FailingBatchSampler(Failing):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])


class FailingCollate(Failing):
    def __call__(self, examples: list[int]) -> torch.Tensor:
        return torch.tensor(examples)


@pytest.mark.parametrize("workers", [0, 1])
def test_attributes_that_objects_of_the_program_lack_may_raise(
    loader_class: Any, workers: int
) -> None:
    for dataset, arguments in (
        (FailingStream(), {"batch_size": 2}),
        (range(4), {"sampler": FailingSampler(), "batch_size": 2}),
        (range(4), {"batch_sampler": FailingBatchSampler()}),
        (range(4), {"collate_fn": FailingCollate(), "batch_size": 2}),
    ):
        loader = loader_class(dataset, num_workers=workers, **arguments)
        assert [x.tolist() for x in loader] == [[0, 1], [2, 3]]


def test_a_mock_with_all_magic_methods_is_a_dataset(loader_class: Any) -> None:
    dataset = MagicMock()
    dataset.__len__.return_value = 4
    dataset.__getitem__.side_effect = lambda index: index
    del dataset.__getitems__
    assert [x.tolist() for x in loader_class(dataset, 2)] == [[0, 1], [2, 3]]
