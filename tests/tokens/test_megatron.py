"""`MegatronDataset` against the rows of megatron-core's GPTDataset, kept in data/megatron.npz."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from megatron_cases import CASES, LENGTH, write_case, write_index

from fastiter import MultiprocessIterator, SerialIterator, concat_examples
from fastiter.tokens import MegatronDataset, TokenDataset

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
    padding = iterator.stats().tokens_read - len(dataset) * LENGTH
    assert padding == 0 if CASES[name].get("drop_last", True) else -LENGTH < padding < 0


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
    lengths = np.diff(dataset_offsets(prefix))[numbers]
    begins = np.arange(len(shuffle) + 1) * LENGTH
    places = np.searchsorted(np.cumsum(lengths), begins, side="right")
    samples = np.stack([places, begins - (np.cumsum(lengths) - lengths)[places]], axis=1)
    np.save(tmp_path / "shuffle.npy", shuffle)
    given = MegatronDataset(
        prefix, LENGTH, seed=9, index=(numbers, samples, str(tmp_path / "shuffle.npy"))
    )
    for i in (0, 5, len(drawn) - 1):
        np.testing.assert_array_equal(given[i]["labels"], drawn[i]["labels"])
    with pytest.raises(ValueError, match="one more than samples"):
        MegatronDataset(prefix, LENGTH, index=(numbers, samples[1:], shuffle))
    with pytest.raises(ValueError, match="begins at token 16, not at length=8"):
        MegatronDataset(prefix, LENGTH // 2, index=(numbers, samples, shuffle))
    with pytest.raises(ValueError, match=r"shuffle index goes from 0 to 1000, and there are \d+ "):
        MegatronDataset(prefix, LENGTH, index=(numbers, samples, np.append(shuffle[1:], 1000)))
    numbers[3] = 1 << 20  # far out of the file: it was read there
    with pytest.raises(ValueError, match=r"document index has the sequence 1048576, but .* 0 to "):
        MegatronDataset(prefix, LENGTH, index=(numbers, samples, shuffle))


def dataset_offsets(prefix):
    dataset = TokenDataset(prefix)
    lengths = [len(dataset.document(i)) for i in range(dataset.n_documents)]
    return np.cumsum([0, *lengths])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences": [0, 1 << 20]}, "has the sequence 1048576, but those of the file are 0 to"),
        ({"sequences": [-1]}, "has the sequence -1"),
        ({"sequences": [0.5, 1.5]}, "must be an array of integers of 1 dimension.* float64"),
        ({"sequences": [True, False]}, "must be an array of integers .* bool"),
        ({"index": ([0], [[0, 0]])}, "index must be three arrays or paths, not 2"),
        ({"fields": "tokens"}, r"pass \['tokens'\]"),
        ({"fields": ["tokens", "tokens"]}, "must name each once"),
        ({"fields": []}, "at least one field"),
        ({"pad_token_id": None}, "pad_token_id must be an integer"),
        ({"eod_token_id": "x"}, "eod_token_id must be an integer"),
        ({"length": 1 << 32}, "length must be at most"),
    ],
)
def test_arguments_are_checked_before_files_are_read(arguments, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        MegatronDataset(write_case(tmp_path), **{"length": LENGTH, **arguments})


def test_fields_may_be_a_generator(tmp_path):
    fields = (name for name in ("tokens", "attention_mask"))
    dataset = MegatronDataset(write_case(tmp_path), LENGTH, fields=fields)
    assert dataset[0]["attention_mask"].shape == (1, LENGTH, LENGTH)


def test_wrong_arguments(tmp_path):
    prefix = write_case(tmp_path)
    with pytest.raises(ValueError, match="need eod_token_id="):
        MegatronDataset(prefix, LENGTH, eod_mask_loss=True)
    with pytest.raises(ValueError, match=r"must name \.bin and \.idx files"):
        MegatronDataset(prefix + ".bin", LENGTH)


def test_a_single_token_has_no_sample(tmp_path):
    """As of megatron-core, whose dataset is empty then; more epochs have some."""
    prefix = write_index(tmp_path / "one", [7], [1], np.uint16)
    assert len(MegatronDataset(prefix, 4)) == 0
    several = MegatronDataset(prefix, 4, num_samples=3)
    assert len(several) == 3 and several[0]["tokens"].tolist() == [7] * 4
    with pytest.raises(ValueError, match="has 0 tokens in the sequences"):
        MegatronDataset(prefix, 4, sequences=np.zeros(0, int))


def test_files_of_other_tokens_are_told(tmp_path):
    prefix = write_case(tmp_path)
    stored = pickle.dumps(MegatronDataset(prefix, LENGTH))
    assert len(pickle.loads(stored))
    write_index(prefix, np.arange(4000), [4000], np.uint16)
    with pytest.raises(ValueError, match="is another file than when the dataset was made"):
        pickle.loads(stored)
