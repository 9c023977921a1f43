"""`PaddingCollator` beside transformers' collators, and rows for models that shift labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fastiter.datasets import ArrowDataset  # noqa: E402
from fastiter.tokens import TokenDataset  # noqa: E402
from fastiter.torch import DataLoader, PaddingCollator  # noqa: E402

LISTS = [[*range(2, 2 + n)] for n in (5, 9, 7, 3)]


def check_same(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert given.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert given[name].dtype == tensor.dtype
        assert torch.equal(given[name], tensor)


def loss_of_a_perfect_model(batch: dict[str, Any]) -> float:
    """Of a causal model of transformers that knows that each token is followed by the next number:
    such models compare what they say at a token with the label of the one behind it."""
    logits = 50 * torch.nn.functional.one_hot(batch["input_ids"] + 1, 32).float()
    logits, labels = logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    return float(torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100))


@pytest.mark.parametrize("length", [None, 16])
@pytest.mark.parametrize("packing", ["bfd", "concat", None])
def test_rows_for_transformers_do_not_shift_labels(length: int | None, packing: str | None) -> None:
    documents = [[*range(1, 17)], [*range(3, 9)], [*range(2, 12)]]
    source: Any = np.arange(1, 18, dtype=np.uint16) if packing is None and length else documents
    rows = TokenDataset.for_transformers(source, length, packing=packing)
    for collate in (None, PaddingCollator()):
        (batch,) = DataLoader(rows, len(rows), collate_fn=collate)
        assert loss_of_a_perfect_model(batch) < 1e-6
        of_documents = "attention_mask" if length is None else "position_ids"
        assert list(batch) == ["input_ids", "labels", of_documents]


def test_documents_are_padded_for_a_loader_of_any_class() -> None:
    rows = TokenDataset.for_transformers(LISTS, pad_token_id=1)
    (wanted,) = DataLoader(rows, 4)
    assert wanted["input_ids"].shape == (4, 9)
    for kind in (DataLoader, torch.utils.data.DataLoader):
        for n_workers in (0, 1):
            (batch,) = kind(rows, 4, collate_fn=PaddingCollator(1), num_workers=n_workers)
            check_same(batch, wanted)


def test_arrow_rows_of_int32_become_what_models_take() -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    lists = pa.array(LISTS, pa.list_(pa.int32()))
    table = pa.table({"input_ids": lists, "label": pa.array([0, 1, 0, 1], pa.int32())})
    (batch,) = torch.utils.data.DataLoader(ArrowDataset(table), 4, collate_fn=PaddingCollator())
    assert {name: tensor.dtype for name, tensor in batch.items()} == dict.fromkeys(
        ("input_ids", "labels", "attention_mask"), torch.int64
    )
    assert batch["attention_mask"].sum(1).tolist() == [5, 9, 7, 3]
    assert batch["input_ids"][3].tolist() == [2, 3, 4, *[0] * 6]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([[], [1]], torch.int64),
        ([[]], torch.int64),
        ([[], [0.5]], torch.float32),
        ([[1, 2], [0.5]], torch.float32),
        ([0.5, 2], torch.float32),
        ([[1], np.ones(2)], torch.float64),
    ],
)
def test_dtypes_are_those_of_the_numbers_that_there_are(values: Any, dtype: Any) -> None:
    for name in ("input_ids", "labels"):
        batch = PaddingCollator()([{name: value} for value in values])
        assert batch[name].dtype == dtype


@pytest.mark.parametrize("name", ["label", "label_ids", "labels"])
def test_labels_of_one_number_are_float32_as_losses_want_them(name: str) -> None:
    for one in (0.5, np.float64(0.5), torch.tensor(0.5, dtype=torch.float64)):
        assert PaddingCollator()([{name: one}, {name: one}])["labels"].dtype == torch.float32
    assert PaddingCollator()([{"score": np.float64(0.5)}])["score"].dtype == torch.float64
    labels = PaddingCollator()([{"label": True}, {"label": False}])["labels"]
    assert labels.dtype == torch.int64 and labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([], "not nothing"),
        ([[1, 2]], "rows that are dicts, not list"),
        ([{"input_ids": [1], "x": 1}, {"input_ids": [1]}], "lacks the field 'x'"),
        ([{"input_ids": [1], "text": "a"}], "field 'text' holds 'a'"),
    ],
)
def test_rows_that_it_cannot_join(rows: list[Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        PaddingCollator()(rows)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 8])
def test_batches_are_those_of_transformers_collators(side: str, multiple: int | None) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = {"[PAD]": 3, **{f"w{i}": i for i in range(4, 16)}}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w4")),
        pad_token="[PAD]",
        padding_side=side,
    )
    masks: list[dict[str, Any]] = [
        {"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in LISTS
    ]
    cases: dict[str, list[dict[str, Any]]] = {
        "DataCollatorWithPadding": [{"input_ids": ids, "label": len(ids)} for ids in LISTS],
        "DataCollatorForTokenClassification": [
            {**row, "labels": row["input_ids"]} for row in masks
        ],
        "DataCollatorForSeq2Seq": [{**row, "labels": [5] * i} for i, row in enumerate(masks, 1)],
    }
    ours = PaddingCollator(3, padding_side=side, pad_to_multiple_of=multiple)
    for name, rows in cases.items():
        theirs = getattr(transformers, name)(tokenizer, pad_to_multiple_of=multiple)
        check_same(ours(rows), dict(theirs([dict(row) for row in rows])))
    rows = [{"x": [1.5, 2.0], "label": 1}, {"x": [2.0, 3.0], "label": 0}]
    check_same(ours(rows), transformers.default_data_collator(rows))
