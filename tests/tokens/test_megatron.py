"""`MegatronDataset` against the rows of megatron-core's GPTDataset, kept in data/megatron.npz."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from megatron_cases import CASES, LENGTH, write_case

from fastiter import MultiprocessIterator, SerialIterator, concat_examples
from fastiter.tokens import MegatronDataset

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "megatron.npz")
DTYPES = {"loss_mask": np.float32, "attention_mask": bool}


def golden_of(name, n_rows):
    found = {key.split("/")[1]: GOLDEN[key] for key in GOLDEN if key.startswith(name + "/")}
    if "attention_mask" in found:
        shape = (n_rows, 1, LENGTH, LENGTH)
        bits = np.unpackbits(found["attention_mask"], count=np.prod(shape))
        found["attention_mask"] = bits.reshape(shape)
    return {field: rows.astype(DTYPES.get(field, np.int64)) for field, rows in found.items()}


def assert_rows(rows, golden):
    assert rows.keys() == golden.keys()
    for field, expected in golden.items():
        assert rows[field].dtype == expected.dtype
        np.testing.assert_array_equal(rows[field], expected, field)


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_megatron_core(name, tmp_path):
    dataset = MegatronDataset(write_case(tmp_path), LENGTH, **CASES[name])
    golden = golden_of(name, len(dataset))
    assert list(dataset[0]) == list(golden) and len(dataset) == len(golden["tokens"])
    iterator = SerialIterator(
        pickle.loads(pickle.dumps(dataset)), len(dataset), shuffle=False, converter=concat_examples
    )
    assert_rows(next(iterator), golden)
    assert_rows(dataset[-1], {field: rows[-1] for field, rows in golden.items()})
    assert iterator.stats().tokens_read == len(dataset) * LENGTH


def test_workers_gather_the_rows(tmp_path):
    golden = golden_of("several epochs", 0)
    dataset = MegatronDataset(write_case(tmp_path), LENGTH, **CASES["several epochs"])
    with MultiprocessIterator(
        dataset, 20, shuffle=False, converter=concat_examples, n_processes=2, context="fork"
    ) as iterator:
        for start in range(0, 100, 20):
            stop = start + 20
            assert_rows(next(iterator), {field: r[start:stop] for field, r in golden.items()})


def test_indices_may_be_given(tmp_path):
    prefix = write_case(tmp_path)
    drawn = MegatronDataset(prefix, LENGTH)
    numbers, shuffle = drawn._drawn(drawn._columns.columns[0].array.planner.source)
    samples = np.zeros((len(shuffle) + 1, 2), np.int32)
    np.save(tmp_path / "shuffle.npy", shuffle)
    given = MegatronDataset(
        prefix, LENGTH, seed=9, index=(numbers, samples, str(tmp_path / "shuffle.npy"))
    )
    for i in (0, 5, len(drawn) - 1):
        np.testing.assert_array_equal(given[i]["labels"], drawn[i]["labels"])
    with pytest.raises(ValueError, match="one more than samples"):
        MegatronDataset(prefix, LENGTH, index=(numbers, samples[1:], shuffle))


def test_wrong_arguments(tmp_path):
    prefix = write_case(tmp_path)
    with pytest.raises(ValueError, match="need eod_token_id="):
        MegatronDataset(prefix, LENGTH, eod_mask_loss=True)
    with pytest.raises(ValueError, match=r"must name \.bin and \.idx files"):
        MegatronDataset(prefix + ".bin", LENGTH)
