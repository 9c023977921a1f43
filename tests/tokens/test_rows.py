"""Rows of tokens, against a plain model of what they mean."""

from __future__ import annotations

import functools
import itertools
import pickle

import numpy as np
import pytest

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator, concat_examples
from fastiter.datasets import ConcatenatedDataset, SubDataset
from fastiter.tokens import TokenDataset

FIELDS = (
    *("input_ids", "labels", "attention_mask", "position_ids", "segment_ids", "document_ids"),
    *("loss_mask", "max_seqlen", "n_tokens"),
)


def documents_of(seed=0, count=40, most=20):
    """Documents whose tokens all differ, some of them empty."""
    lengths = np.random.default_rng(seed).integers(0, most, count)
    tokens = itertools.count(1000)
    return [[next(tokens) for _ in range(n)] for n in lengths]


def expected_row(dataset, added, segments, length, *, shifts=True, pad=0, ignore=-100, left=False):
    """The fields of a row by its segments, with borders. `added`: documents with BOS and EOS."""
    ids, labels, positions, numbers, names = [], [], [], [], []
    for k, (document, start, count) in enumerate(segments.tolist()):
        tokens = added[document]
        ids += tokens[start : start + count]
        if shifts:
            labels += (tokens + [ignore])[start + 1 : start + 1 + count]
        else:
            labels += [ignore, *tokens[start + 1 : start + count]]
        positions += range(count)
        numbers += [k + 1] * count
        names += [document] * count
    n = len(ids)

    def padded(values, fill, dtype):
        filler = [fill] * (length - n)
        return np.array([*filler, *values] if left else [*values, *filler], dtype)

    return {
        "input_ids": padded(ids, pad, np.int64),
        "labels": padded(labels, ignore, np.int64),
        "attention_mask": padded([1] * n, 0, np.int64),
        "position_ids": padded(positions, 0, np.int64),
        "segment_ids": padded(numbers, 0, np.int32),
        "document_ids": padded(names, -1, np.int64),
        "loss_mask": padded([float(label != ignore) for label in labels], 0, np.float32),
        "max_seqlen": np.int32(segments[:, 2].max(initial=0)),
        "n_tokens": np.int32(n),
    }


def assert_equal_rows(row, expected):
    assert row.keys() == expected.keys()
    for name in row:
        np.testing.assert_array_equal(row[name], expected[name], name)
        assert row[name].dtype == expected[name].dtype, name


@pytest.mark.parametrize("packing", ["concat", "bfd"])
@pytest.mark.parametrize("length", [1, 7, 64, 65])
def test_each_token_is_once_an_input_and_a_label(packing, length):
    documents = documents_of(count=12 if length == 1 else 40)  # each token is a row
    for bos, eos, seed, shifts, side in (
        (None, None, None, True, "right"),
        (None, 1, 3, False, "left"),
        (2, 1, 4, True, "right"),
    ):
        dataset = TokenDataset(
            documents,
            length,
            packing=packing,
            window=17,
            seed=seed,
            bos_token_id=bos,
            eos_token_id=eos,
            shift_labels=shifts,
            padding_side=side,
            fields=FIELDS,
        )
        added = [
            [*([] if bos is None else [bos]), *d, *([] if eos is None else [eos])] if d else []
            for d in documents
        ]
        places = set()
        for epoch in range(2):
            dataset.set_epoch(epoch)
            seen, lengths, costs = [], dataset.lengths, dataset.costs
            n_labels = 0
            for i in range(len(dataset)):
                segments = dataset.segments(i)
                row = dataset[i]
                expected = expected_row(
                    dataset, added, segments, length, shifts=shifts, left=side == "left"
                )
                assert_equal_rows(row, expected)
                assert lengths[i] == row["n_tokens"] > 0
                assert costs[i] == (segments[:, 2] ** 2).sum()
                n_labels += int(row["loss_mask"].sum())
                for document, start, count in segments.tolist():
                    seen += [(document, place) for place in range(start, start + count)]
                if packing != "concat":  # whole pieces
                    for document, start, count in segments.tolist():
                        rest = len(added[document]) - start
                        assert start % length == 0 and count == min(length, rest)
            all_places = [(d, p) for d in range(len(added)) for p in range(len(added[d]))]
            assert sorted(seen) == all_places
            if shifts:
                assert n_labels == sum(max(0, len(d) - 1) for d in added)
            places.add(tuple(seen))
        if length > 1:
            assert len(places) == (1 if seed is None else 2)


def test_rows_never_mix_windows_and_come_in_random_order():
    documents = [[1] * n for n in np.random.default_rng(0).integers(1, 30, 500)]
    dataset = TokenDataset(documents, 32, packing="bfd", window=100)
    windows = [{d // 100 for d in dataset.segments(i)[:, 0].tolist()} for i in range(len(dataset))]
    assert all(len(each) == 1 for each in windows)
    numbers = [each.pop() for each in windows]
    assert numbers == sorted(numbers)
    longest = [dataset.segments(i)[:, 2].max() for i in range(numbers.count(0))]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)


def test_fits_are_those_of_the_plain_algorithm():
    rng = np.random.default_rng(1)
    for length in (5, 64, 100, 5000):
        sizes = rng.integers(1, length + 1, 200)
        dataset = TokenDataset([[1] * n for n in sizes], length, packing="bfd", window=1000)
        rooms: list[int] = []
        for n in sorted(sizes, reverse=True):
            fits = [k for k, room in enumerate(rooms) if room >= n]
            if not fits:
                rooms.append(length - n)
                continue
            rooms[min(fits, key=rooms.__getitem__)] -= n
        assert len(dataset) == len(rooms)
        assert sorted(length - dataset.lengths) == sorted(rooms)


@pytest.mark.parametrize("stride", [1, 3, None])
def test_windows(stride):
    data = np.random.default_rng(0).integers(0, 50_000, 500).astype(np.uint16)
    offsets = np.array([0, 0, 90, 91, 91, 300, 500])
    dataset = TokenDataset(
        data, 32, stride=stride, documents=offsets, fields=("input_ids", "labels", "document_ids")
    )
    step = stride or 32
    assert len(dataset) == (500 - 1 - 32) // step + 1
    for i in range(len(dataset)):
        row, start = dataset[i], i * step
        # nanoGPT's x and y
        np.testing.assert_array_equal(row["input_ids"], data[start : start + 32].astype(np.int64))
        np.testing.assert_array_equal(row["labels"], data[start + 1 : start + 33].astype(np.int64))
        names = np.searchsorted(offsets, np.arange(start, start + 32), side="right") - 1
        np.testing.assert_array_equal(row["document_ids"], names)
    bordered = TokenDataset(data, 32, stride=stride, documents=offsets, borders=True, fields=FIELDS)
    added = [data[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    for i in range(len(bordered)):
        expected = expected_row(bordered, added, bordered.segments(i), 32)
        assert_equal_rows(bordered[i], expected)


def test_labels_without_borders_go_on_in_the_stream():
    documents = documents_of(3)
    dataset = TokenDataset(
        documents, 16, packing="concat", seed=1, window=7, borders=False, fields=FIELDS
    )
    rows = [dataset[i] for i in range(len(dataset))]
    inputs = np.concatenate([row["input_ids"][: row["n_tokens"]] for row in rows])
    labels = np.concatenate([row["labels"][: row["n_tokens"]] for row in rows])
    np.testing.assert_array_equal(labels[:-1], inputs[1:])
    assert labels[-1] == -100
    assert all((row["position_ids"] == np.arange(16) * row["attention_mask"]).all() for row in rows)


@pytest.mark.parametrize("drop_last", [False, True])
def test_labels_without_borders_come_from_the_next_document_that_is_not_empty(drop_last):
    documents = [[1, 2, 3], [], [], [4, 5, 6]]  # each in a window of its own
    dataset = TokenDataset(
        documents, 2, packing="concat", window=1, borders=False, drop_last=drop_last
    )
    labels = [row["labels"].tolist() for row in dataset]
    if drop_last:  # the next tokens, though the rows that have them are left out
        assert labels == [[2, 3], [5, 6]]
    else:
        assert labels == [[2, 3], [4, -100], [5, 6], [-100, -100]]


def test_a_document_that_is_too_long_for_a_row_is_refused(tmp_path):
    with open(tmp_path / "long.bin", "wb") as file:
        file.truncate(1 << 31)
    dataset = TokenDataset(str(tmp_path / "long.bin"), dtype=np.uint8, eos_token_id=0)
    with pytest.raises(ValueError, match="document 0 has 2147483649 tokens, too many for a row"):
        dataset[0]


@pytest.mark.parametrize("overlong", ["split", "truncate", "drop", "error"])
def test_overlong_documents(overlong):
    documents = [list(range(n)) for n in (3, 8, 9, 25)]
    dataset = TokenDataset(documents, 8, packing="bfd", overlong=overlong)
    if overlong == "error":
        with pytest.raises(ValueError, match=r"document 3 has 25 tokens.*overlong='split'"):
            len(dataset)
        return
    counts = np.bincount([s[0] for i in range(len(dataset)) for s in dataset.segments(i)])
    assert (
        counts.tolist()
        == {
            "split": [1, 1, 2, 4],
            "truncate": [1, 1, 1, 1],
            "drop": [1, 1],
        }[overlong]
    )
    if overlong == "truncate":  # the label behind the cut
        row = next(row for row in dataset if row["labels"][-1] == 8)
        assert row["input_ids"].tolist() == list(range(8))


def test_single_documents_are_padded_in_batches():
    documents = [[1, 2, 3], [4], [], [5, 6]]
    dataset = TokenDataset(
        documents, pad_token_id=9, fields=("input_ids", "labels", "attention_mask", "n_tokens")
    )
    batch = next(SerialIterator(dataset, 4, shuffle=False, converter=concat_examples))
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9], [5, 6, 9]]
    ends = [[2, 3, -100], [-100] * 3, [-100] * 3, [6, -100, -100]]
    assert batch["labels"].tolist() == ends
    assert batch["attention_mask"].sum(1).tolist() == batch["n_tokens"].tolist() == [3, 1, 0, 2]


class ByExample(TokenDataset):
    """Read by example, since indexing is its own."""

    def __getitems__(self, indices):
        return super().__getitems__(indices)


@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator, MultiprocessIterator])
@pytest.mark.parametrize(
    "options",
    [
        {"fields": FIELDS, "bos_token_id": 1},
        {"fields": FIELDS, "pad_to_multiple_of": 8, "pad_token_id": 7},
        {"fields": ("labels",), "shift_labels": False},
    ],
)
def test_single_documents_are_gathered_without_examples(kind, options, monkeypatch):
    documents = documents_of(count=60)
    workers = {SerialIterator: {}, MultithreadIterator: {"n_threads": 2}}.get(
        kind, {"n_processes": 2, "context": "fork"}
    )
    converter = functools.partial(concat_examples, return_lengths=True)
    fills = dict.fromkeys(options["fields"], 0) | {"labels": -100, "document_ids": -1}
    fills["input_ids"] = options.get("pad_token_id", 0)
    fills = {name: fills[name] for name in options["fields"]}
    expected = SerialIterator(
        ByExample(documents, **options),
        7,
        shuffle=False,
        converter=functools.partial(converter, padding=fills),
    )
    batches = [next(expected) for _ in range(20)]

    def refuse(self, indices):
        raise AssertionError("an example was made")

    monkeypatch.setattr(TokenDataset, "__getitems__", refuse)
    dataset = TokenDataset(documents, **options)
    with kind(dataset, 7, shuffle=False, converter=converter, **workers) as iterator:
        for batch in batches:
            found = next(iterator)
            assert found.keys() == batch.keys()
            for name, array in batch.items():
                assert found[name].dtype == array.dtype, name
                np.testing.assert_array_equal(found[name], array)


def test_what_is_wrong_with_single_documents_is_said():
    dataset = TokenDataset(np.arange(9), documents=[0, 4, 12, 9])
    with (
        MultiprocessIterator(
            dataset, 3, shuffle=False, n_processes=1, context="fork", converter=concat_examples
        ) as iterator,
        pytest.raises(ValueError, match="document 1 lead out of the 9 tokens"),
    ):
        next(iterator)
    rows = TokenDataset([[1, 2, 3], [4]])
    cut = functools.partial(concat_examples, max_length=2)
    batch = next(SerialIterator(rows, 2, shuffle=False, converter=cut))
    assert batch["input_ids"].tolist() == [[1, 2], [4, 0]]
    with pytest.raises(IndexError, match="index 2 is outside of a dataset of 2"):
        rows[2]


def test_padding_to_a_multiple():
    dataset = TokenDataset([[1, 2, 3]], 3, packing="bfd", pad_to_multiple_of=8)
    assert dataset[0]["input_ids"].tolist() == [1, 2, 3, 0, 0, 0, 0, 0]


def test_a_dataset_is_pickled_and_indexed_like_a_list():
    dataset = TokenDataset(documents_of(), 16, packing="bfd", seed=5)
    dataset.set_epoch(3)
    loaded = pickle.loads(pickle.dumps(dataset))
    assert loaded.epoch == 3 and len(loaded) == len(dataset)
    for i in (0, -1, len(dataset) - 1):
        np.testing.assert_array_equal(loaded[i]["input_ids"], dataset[i]["input_ids"])
    for i in (len(dataset), -len(dataset) - 1, 1 << 63, 1 << 80):
        with pytest.raises(IndexError, match="outside of a dataset"):
            dataset[i]
    with pytest.raises(IndexError):
        dataset.segments(len(dataset))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"packing": "bfd"}, "needs length="),
        ({"packing": "best_fit"}, "packing must be one of None, 'concat', 'bfd'"),
        ({"length": 4, "packing": "bfd", "stride": 1}, "stride=1 is for windows"),
        ({"length": 4, "packing": "concat", "overlong": "drop"}, "needs packing='bfd', not 'conc"),
        ({"length": 4, "seed": 0}, "order_sampler"),
        ({"length": 4, "eos_token_id": 0}, "need packing="),
        ({"length": 4, "packing": "bfd", "borders": False}, "borders=False is for"),
        ({"length": 4, "fields": ("ids",)}, "fields must be of"),
        ({"length": 4, "fields": ("labels", "labels")}, "fields must name each once"),
        ({"length": 4, "fields": ()}, "at least one field"),
        (
            {"length": 4, "fields": ["cu_seqlens"], "padding_side": "left"},
            "use padding_side='right'",
        ),
        (
            {"length": 4, "packing": "bfd", "window": 1 << 31},
            "window must be at most 1073741824",
        ),
        ({"length": 1 << 32}, "length must be at most 2147483647"),
        ({"length": (1 << 30) + 1, "pad_to_multiple_of": 1 << 30}, "are too long"),
        ({"length": 4, "pad_token_id": 1 << 63}, "pad_token_id must be at most"),
        ({"length": 4, "ignore_index": -(1 << 63) - 1}, "ignore_index must be at least"),
        ({"eos_token_id": 1 << 63}, "eos_token_id must be at most"),
        ({"length": 4, "stride": 1 << 70}, "stride must be at most"),
        ({"length": 4, "fields": 5}, "fields must be a list of names, not 5 of type int"),
        ({"aligned": 1.5}, "aligned must be a list of names, not 1.5 of type float"),
        ({"dtype": "x"}, "dtype must be a dtype of NumPy's, not 'x'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        TokenDataset([[1, 2], [3]], **arguments)


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id", "ignore_index"])
def test_tokens_are_integers(name):
    with pytest.raises(TypeError, match=f"{name} must be an integer"):
        TokenDataset([[1, 2], [3]], **{name: 1.5})


@pytest.mark.parametrize("name", ["fields", "aligned"])
def test_names_are_a_list(name):
    with pytest.raises(TypeError, match=rf"{name} must be a list of names, .* \['labels'\]"):
        TokenDataset([[1, 2], [3]], **{name: "labels"})


ITERATORS = {
    "serial": SerialIterator,
    "threads": functools.partial(MultithreadIterator, n_threads=2),
    "processes": functools.partial(MultiprocessIterator, n_processes=1, context="fork"),
}


@pytest.mark.parametrize("iterator", ITERATORS)
@pytest.mark.parametrize(
    "options",
    [
        {"length": 16, "packing": "bfd"},
        {"length": 16, "packing": "bfd", "seed": 3, "window": 16},
        {"length": 16, "packing": "concat", "borders": False},
        {"length": 8},
        {},
    ],
)
def test_cu_seqlens_tell_where_segments_begin(options, iterator):
    fields = ("input_ids", "segment_ids", "cu_seqlens", "n_tokens")
    dataset = pickle.loads(pickle.dumps(TokenDataset(documents_of(), fields=fields, **options)))
    rows = list(dataset)
    for row in rows:
        numbers = row["segment_ids"][: row["n_tokens"]]
        expected = [*np.flatnonzero(np.diff(numbers, prepend=0)), row["n_tokens"]]
        assert row["cu_seqlens"].tolist() == (expected if row["n_tokens"] else [0])
        assert row["cu_seqlens"].dtype == np.int32
    given = {"shuffle": False, "converter": concat_examples, "repeat": False}
    with ITERATORS[iterator](dataset, 7, **given) as batches:
        found = list(batches)
    for number, batch in enumerate(found):
        part = [row["cu_seqlens"] for row in rows[7 * number : 7 * number + 7]]
        most = max(map(len, part))
        padded = [np.pad(each, (0, most - len(each)), mode="edge") for each in part]
        assert batch["cu_seqlens"].dtype == np.int32
        np.testing.assert_array_equal(batch["cu_seqlens"], padded)
        assert len(batch["input_ids"]) == len(part)


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
@pytest.mark.parametrize(
    "options",
    [{"length": 2}, {"length": 2, "packing": "concat"}, {"length": 4, "packing": "bfd"}, {}],
)
def test_tokens_beyond_int32(options, dtype, tmp_path):
    np.array([5, 6, 3_000_000_000, 7, 8], dtype).tofile(tmp_path / "tokens.bin")
    rows = TokenDataset(tmp_path / "tokens.bin", dtype=dtype, **options)
    batch = next(SerialIterator(rows, len(rows), shuffle=False, converter=concat_examples))
    for found in (batch["input_ids"], np.concatenate([row["input_ids"] for row in rows])):
        assert found.dtype == np.int64
        assert 3_000_000_000 in found


@pytest.mark.parametrize("iterator", [*ITERATORS, "torch"])
@pytest.mark.parametrize("multiple", [None, 4])
@pytest.mark.parametrize("padding", [None, 3])
def test_padding_of_batches_stands_on_the_left(multiple, iterator, padding):
    documents = documents_of(count=12)
    options = {"fields": FIELDS, "pad_token_id": 7, "pad_to_multiple_of": multiple}
    rows = TokenDataset(documents, padding_side="left", **options)
    if iterator == "torch":
        pytest.importorskip("torch")
        from fastiter.torch import DataLoader

        batch = {name: value.numpy() for name, value in next(iter(DataLoader(rows, 12))).items()}
        padding = None
    else:
        converter = functools.partial(concat_examples, padding=padding)
        with ITERATORS[iterator](rows, 12, shuffle=False, converter=converter) as batches:
            batch = next(batches)
    # All have the length of the longest: what rows of a fixed length are.
    most = -(-max(map(len, documents)) // (multiple or 1)) * (multiple or 1)
    assert batch["input_ids"].shape == (12, most)
    for row, document in zip(batch["input_ids"], documents, strict=True):
        own = -(-len(document) // (multiple or 1)) * (multiple or 1)
        filler = [padding or 7] * (most - own) + [7] * (own - len(document))
        assert row.tolist() == filler + document
    if padding is None:
        fixed = TokenDataset(documents, most, packing="bfd", padding_side="left", fields=FIELDS)
        by_document = {int(row["document_ids"].max()): row for row in fixed if row["max_seqlen"]}
        for name in ("labels", "attention_mask", "position_ids", "document_ids", "loss_mask"):
            for number, row in by_document.items():
                if row["segment_ids"].max() == 1:
                    np.testing.assert_array_equal(batch[name][number], row[name], name)


@pytest.mark.parametrize("loader", ["processes", "torch", "torch with concat_examples"])
def test_workers_pad_each_batch_on_the_left(loader):
    """From the first batches workers know the columns, and then pad by themselves what they can."""
    documents = documents_of(count=60)
    rows = TokenDataset(documents, padding_side="left", pad_token_id=7)
    if loader != "processes":
        pytest.importorskip("torch")
        from fastiter.torch import DataLoader

        own = functools.partial(concat_examples, padding=7) if "concat" in loader else None
        batches = list(DataLoader(rows, 4, num_workers=1, collate_fn=own))
    else:
        options = {"shuffle": False, "repeat": False, "converter": concat_examples}
        with MultiprocessIterator(rows, 4, n_processes=1, **options) as iterator:
            batches = list(iterator)
    found = [row.tolist() for batch in batches for row in batch["input_ids"]]
    for row, document in zip(found, documents, strict=True):
        assert row == [7] * (len(row) - len(document)) + document


def test_rows_of_several_datasets_are_padded_as_those_of_one():
    fields = ("input_ids", "labels")
    documents = [[1], [2, 3, 4], [5, 6]]
    for options in ({"padding_side": "left"}, {"fields": (*fields, "cu_seqlens")}):
        whole = TokenDataset(documents, pad_token_id=9, **options)
        halves = [TokenDataset(part, pad_token_id=9, **options) for part in ([[1]], documents[1:])]
        joined = ConcatenatedDataset(*halves)
        for converter in (concat_examples, functools.partial(concat_examples, padding=0)):
            given = {"shuffle": False, "converter": converter}
            wanted = next(SerialIterator(whole, 3, **given))
            for dataset in (joined, SubDataset(joined, 0, 3)):
                found = next(SerialIterator(dataset, 3, **given))
                assert {name: column.tolist() for name, column in found.items()} == {
                    name: column.tolist() for name, column in wanted.items()
                }
    left, right = TokenDataset(documents, padding_side="left"), TokenDataset(documents)
    with pytest.raises(ValueError, match=r"pad 'input_ids' by .* give them one padding, on one"):
        ConcatenatedDataset(left, right)
    ConcatenatedDataset(right, right, TokenDataset(documents, 2))
