"""Batches without workers: large ones lie in memory that is used again, and are torch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

LARGE = 100, 100  # shape of rows; with each dtype below they have 16 KiB or more


def as_rows(kind):
    """Rows of a batch, as large as those that are joined in memory which is used again."""
    rows = [torch.full(LARGE, i, dtype=torch.float32) for i in range(32)]
    changed = {
        "bfloat16": [row.bfloat16() for row in rows],
        "uint8": [row.repeat(2, 2).byte() for row in rows],
        "bool": [row.repeat(2, 2) > 3 for row in rows],
        "arrays": [row.numpy() for row in rows],
        "mixed": [*rows[:-1], rows[-1].double()],
        "transposed": [row.view(50, 200).T for row in rows],
        "gradients": [row.requires_grad_() for row in rows],
        "parameters": [torch.nn.Parameter(row) for row in rows],
        "complex": [(row * 1j).conj() for row in rows],
        "shapes": [*rows[:-1], rows[-1][1:]],
        "sparse": [row.to_sparse() for row in rows],
    }
    return changed[kind]


@pytest.mark.parametrize(
    "kind", ["bfloat16", "uint8", "bool", "arrays", "mixed", "transposed", "gradients"]
)
def test_large_batches_without_workers_are_torchs(kind):
    rows = as_rows(kind)
    (ours,), (theirs,) = (list(each(rows, 32)) for each in (DataLoader, torch_data.DataLoader))
    assert (ours.dtype, ours.stride(), type(ours)) == (theirs.dtype, theirs.stride(), type(theirs))
    assert ours.requires_grad == theirs.requires_grad and torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["parameters", "complex", "shapes", "sparse"])
def test_odd_large_batches_without_workers_are_torchs(kind):
    results = []
    for each in (DataLoader, torch_data.DataLoader):
        try:
            (batch,) = each(as_rows(kind), 32)
            results.append((type(batch), batch.dtype, batch.is_conj(), batch.tolist()))
        except Exception as error:
            results.append((type(error), str(error)[:80]))
    assert results[0] == results[1]


def test_large_batches_without_workers_use_their_memory_again():
    loader = DataLoader([torch.full(LARGE, i) for i in range(320)], 32)
    places = {batch.data_ptr() for batch in loader}
    assert len(places) == 2  # that of the batch before is held while the next one is made
    kept = list(loader)
    assert [int(row[0, 0]) for batch in kept for row in batch] == list(range(320))
    assert len({batch.data_ptr() for batch in kept}) == 10
    parts = [batch[0].numpy() for batch in loader]
    assert [int(part[0, 0]) for part in parts] == list(range(0, 320, 32))
