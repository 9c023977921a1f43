"""Sources of tokens: files with and without headers, Megatron's files, Arrow lists, arrays."""

from __future__ import annotations

import itertools
import pickle
import struct

import numpy as np
import pytest
from megatron_cases import write_index

from fastiter import MultiprocessIterator, SerialIterator, concat_examples
from fastiter.tokens import TokenDataset, document_offsets, flat_batch

TOKENS = np.random.default_rng(0).integers(0, 5000, 1000)
OFFSETS = np.array([0, 10, 10, 300, 1000])


def shards(folder, dtype=np.uint16, header=None):
    for number, part in enumerate(np.split(TOKENS.astype(dtype), [400, 650])):
        head = b""
        if header is not None:
            head = struct.pack("<3i", header, 1, len(part)).ljust(1024, b"\0")
        (folder / f"part{number}.bin").write_bytes(head + part.tobytes())
    return str(folder / "part*.bin")


def megatron_index(prefix, sizes, dtype=np.uint16):
    return write_index(prefix, TOKENS[: sum(sizes)], sizes, dtype)


def assert_holds(dataset, offsets=OFFSETS):
    assert dataset.n_documents == len(offsets) - 1
    for i in range(dataset.n_documents):
        np.testing.assert_array_equal(dataset.document(i), TOKENS[offsets[i] : offsets[i + 1]])
    inputs = [row["input_ids"][: row["n_tokens"]] for row in dataset]
    np.testing.assert_array_equal(np.concatenate(inputs), TOKENS)


@pytest.mark.parametrize(
    ("dtype", "header"),
    [(np.uint16, None), (np.uint32, None), (np.uint16, 20240520), (np.uint32, 20240801)],
)
def test_files_are_one_stream(tmp_path, dtype, header):
    pattern = shards(tmp_path, dtype, header)
    given = {"fields": ("input_ids", "labels", "n_tokens")}
    if header is None:
        given["dtype"] = dtype
    windows = TokenDataset(pattern, 64, stride=1, **given)
    assert len(windows) == 1000 - 64 and windows.n_documents == 1
    for i in (0, 350, 399, 600, 935):
        np.testing.assert_array_equal(windows[i]["input_ids"], TOKENS[i : i + 64])
        np.testing.assert_array_equal(windows[i]["labels"], TOKENS[i + 1 : i + 65])
    np.save(tmp_path / "offsets.npy", OFFSETS)
    for documents in (OFFSETS, OFFSETS.astype(np.uint32), str(tmp_path / "offsets.npy")):
        dataset = TokenDataset(pattern, 64, packing="concat", documents=documents, **given)
        assert_holds(dataset)
    assert_holds(pickle.loads(pickle.dumps(dataset)))
    assert len(pickle.dumps(dataset)) < 2000
    files = sorted(str(path) for path in tmp_path.glob("part*"))
    assert_holds(TokenDataset(files, 64, packing="concat", documents=OFFSETS, **given))


def test_megatron_files(tmp_path):
    prefix = megatron_index(tmp_path / "data", np.diff(OFFSETS), np.int32)
    fields = ("input_ids", "n_tokens")
    for source in (prefix, prefix + ".idx"):
        assert_holds(TokenDataset(source, 50, packing="concat", fields=fields))


def test_lists_of_arrays():
    lists = np.split(TOKENS, OFFSETS[1:-1])
    for source in (lists, [each.tolist() for each in lists], [each.astype("i2") for each in lists]):
        fields = ("input_ids", "n_tokens")
        assert_holds(TokenDataset(source, 50, packing="concat", fields=fields))


@pytest.mark.parametrize("kind", ["list_", "large_list"])
def test_arrow_lists_and_aligned_columns(kind, tmp_path):
    pa = pytest.importorskip("pyarrow")
    lists = [part.tolist() for part in np.split(TOKENS, OFFSETS[1:-1])]
    masks = [[n % 2 == 0 for n in part] for part in lists]
    labels = [[-n for n in part] for part in lists]

    def column(values, item):
        values, of = [[], *values, values[0]], getattr(pa, kind)(item)
        chunks = [pa.array(values[:3], of), pa.array(values[3:], of)]
        return pa.chunked_array(chunks).slice(1, len(lists))

    table = pa.table(
        {
            "input_ids": column(lists, pa.int32()),
            "mask": column(masks, pa.bool_()),
            "labels": column(labels, pa.int64()),
        }
    )
    with pa.ipc.new_file(str(tmp_path / "t.arrow"), table.schema) as writer:
        writer.write_table(table)
    for source in (table, str(tmp_path / "t.arrow")):
        dataset = TokenDataset(
            source,
            48,
            packing="concat",
            aligned=("mask", "labels"),
            fields=("input_ids", "n_tokens", "attention_mask"),
        )
        assert_holds(dataset)
        batch = next(SerialIterator(dataset, 99, shuffle=False, converter=concat_examples))
        used = batch["attention_mask"] == 1
        np.testing.assert_array_equal(batch["labels"], np.where(used, -batch["input_ids"], -100))
        np.testing.assert_array_equal(batch["mask"], (batch["input_ids"] % 2 == 0) & used)
    with pytest.raises(ValueError, match="an aligned column"):
        short = table.set_column(1, "mask", pa.array([[True]] * len(lists)))
        TokenDataset(short, 48, packing="bfd", aligned=("mask",))[0]


def test_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    lists = [part.tolist() for part in np.split(TOKENS, OFFSETS[1:-1])]
    given = datasets.Dataset.from_dict({"input_ids": lists})
    order = [2, 0, 3]
    dataset = TokenDataset(given.select(order), 64, packing="concat")
    assert [dataset.document(i).tolist() for i in range(3)] == [lists[i] for i in order]
    expected = np.concatenate([lists[i] for i in order]).astype(int)
    inputs = np.concatenate([row["input_ids"] for row in dataset])
    np.testing.assert_array_equal(inputs[: len(expected)], expected)


def test_a_view_in_another_order_is_no_stream_of_windows():
    datasets = pytest.importorskip("datasets")
    given = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5], [6]]}).select([2, 0])
    assert TokenDataset(given).n_tokens == 4
    with pytest.raises(ValueError, match=r"pass packing='concat', or dataset\.flatten_indices"):
        TokenDataset(given, 2)
    windows = TokenDataset(given.flatten_indices(), 3)
    assert windows[0]["input_ids"].tolist() == [6, 1, 2]


def test_nulls_of_lists_count_where_a_row_has_them():
    pa = pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    of = pa.list_(pa.int32())
    table = pa.table({"input_ids": pa.array([[1, 2], None, [3, None], [4, 5]], of)})
    kept = TokenDataset(datasets.Dataset(table).select([3, 0]))
    assert [row["input_ids"].tolist() for row in kept] == [[4, 5], [1, 2]]
    for part, row in ((table, 1), (table[2:], 0)):
        with pytest.raises(
            ValueError, match=rf"'input_ids' of type list<.*> has a null in row {row}"
        ):
            TokenDataset(part)


def test_columns_that_hold_no_tokens_are_named():
    pa = pytest.importorskip("pyarrow")
    for values in ([["a"]], [[[1]]], [1]):
        with pytest.raises(TypeError, match=r"column 'input_ids' is of type .* lists of numbers"):
            TokenDataset(pa.table({"input_ids": values}))
    for of in (pa.uint8(), pa.float32()):  # -100 has no room there
        table = pa.table({"input_ids": [[1]], "labels": pa.array([[1]], pa.list_(of))})
        with pytest.raises(ValueError, match=r"column 'labels' has values .* ignore_index=-100"):
            TokenDataset(table, 8, packing="bfd", aligned=["labels"])
    with pytest.raises(TypeError, match="or a list of arrays, or paths"):
        TokenDataset(iter([[1]]))


def test_tokens_that_a_dtype_has_no_room_for_are_refused():
    with pytest.raises(
        ValueError, match=r"source\[1\] has tokens from 2 to 70000, .* dtype=uint16"
    ):
        TokenDataset([[1], [2, 70_000]], dtype=np.uint16)
    with pytest.raises(ValueError, match="int64 has no room"):
        TokenDataset([np.array([1 << 63], np.uint64)])
    assert TokenDataset([[1], [70_000]], dtype=np.uint32)[1]["input_ids"].tolist() == [70_000]


def test_tokens_are_never_rounded():
    odd, most = (1 << 53) + 1, (1 << 63) - 1
    for dtypes in ([np.uint64], [np.int64, np.uint64], [np.uint64, np.int64, np.uint8]):
        documents = [np.array([odd, most], dtypes[0]), *(np.array([3], each) for each in dtypes)]
        for dtype in (None, np.int64):
            rows = TokenDataset(documents, dtype=dtype)
            assert rows[0]["input_ids"].tolist() == [odd, most]
            assert rows[1]["input_ids"].tolist() == [3]


def test_a_document_may_lie_in_several_parts(tmp_path):
    parts = [[0, 1], [], [2], [3, 4, 5]]
    for number, part in enumerate(parts):
        np.array(part, np.uint16).tofile(tmp_path / f"{number}.bin")
    for offsets in ([0, 6], [0, 0, 1, 4, 6, 6], [0, 2, 3, 6]):
        dataset = TokenDataset(str(tmp_path / "*.bin"), documents=offsets)
        for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
            assert dataset.document(i).tolist() == list(range(start, stop))


def test_document_offsets_of_one_file_of_tokens(tmp_path):
    megatron_index(tmp_path / "a", [3])
    megatron_index(tmp_path / "b", [3])
    for path in (tmp_path / "*.bin", tmp_path / "a"):
        with pytest.raises(ValueError, match=r"must name one \.bin file"):
            document_offsets(path, 0)
    with pytest.raises(ValueError, match="eod_token_id=65536 is no token of dtype=uint16"):
        document_offsets(tmp_path / "a.bin", 1 << 16)
    for wrong in (0.5, True, "0", None):
        with pytest.raises(TypeError, match="eod_token_id must be an integer"):
            document_offsets(tmp_path / "a.bin", wrong)
    with pytest.raises(ValueError, match=r"one prefix .* and without other files"):
        TokenDataset(str(tmp_path / "a*"), 8)  # the index was read as tokens, too


def test_document_offsets(tmp_path):
    for tokens, expected in (([5, 0, 0, 7, 8, 0], [0, 2, 3, 6]), ([0, 7], [0, 1, 2]), ([], [0])):
        np.array(tokens, np.uint16).tofile(tmp_path / "a.bin")
        assert document_offsets(tmp_path / "a.bin", 0).tolist() == expected


def test_flat_batches_have_no_padding(tmp_path):
    documents = [list(range(100 * k, 100 * k + n)) for k, n in enumerate([3, 5, 2, 7, 1])]
    dataset = TokenDataset(
        documents, 8, packing="bfd", fields=("input_ids", "segment_ids", "position_ids")
    )
    with MultiprocessIterator(
        dataset, 3, shuffle=False, converter=flat_batch, n_processes=1, context="fork"
    ) as iterator:
        batch = next(iterator)
    parts = np.split(batch["input_ids"], batch["cu_seqlens"][1:-1])
    assert sorted(part.tolist() for part in parts) == documents
    assert batch["max_seqlen"] == 7 and batch["cu_seqlens"].dtype == np.int32
    starts = np.concatenate([np.arange(n) for n in np.diff(batch["cu_seqlens"])])
    np.testing.assert_array_equal(batch["position_ids"], starts)
    with pytest.raises(ValueError, match="needs rows with segment_ids"):
        flat_batch([{"input_ids": np.arange(3)}])


@pytest.mark.parametrize("suffix", ["parquet", "pq"])
def test_parquet_is_no_file_to_map(suffix, tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / f"tokens.{suffix}")
    parquet.write_table(pa.table({"input_ids": [[1, 2, 3]]}), path)
    with pytest.raises(ValueError, match=r"pass pyarrow\.parquet\.read_table"):
        TokenDataset(path, 8)


def test_a_file_of_llmc_that_is_cut_off_is_refused(tmp_path):
    shards(tmp_path, np.uint16, 20240520)
    for path in tmp_path.glob("part*"):
        path.write_bytes(path.read_bytes()[:-2])
        for dtype in (None, np.uint16):
            with pytest.raises(ValueError, match="tokens in its header: it is damaged"):
                TokenDataset(str(path), 8, dtype=dtype)


def test_a_header_of_llmc_in_another_version_is_refused(tmp_path):
    path = tmp_path / "x.bin"
    head = struct.pack("<3i", 20240520, 2, 4).ljust(1024, b"\0")
    path.write_bytes(head + np.arange(4, dtype=np.uint16).tobytes())
    for read in (lambda: TokenDataset(str(path), 2), lambda: document_offsets(path, 3)):
        with pytest.raises(ValueError, match=r"x\.bin has a header of llm\.c in version 2"):
            read()


@pytest.mark.parametrize(("dtype", "magic"), [(np.uint16, 20240520), (np.uint32, 20240801)])
def test_offsets_of_a_file_of_llmc_leave_its_header_out(dtype, magic, tmp_path):
    tokens = np.array([1, 2, 9, 3, 9, 4], dtype)
    head = struct.pack("<3i", magic, 1, len(tokens)).ljust(1024, b"\0")
    (tmp_path / "x.bin").write_bytes(head + tokens.tobytes())
    offsets = document_offsets(tmp_path / "x.bin", 9)
    assert offsets.tolist() == [0, 3, 5, 6]
    assert len(TokenDataset(tmp_path / "x.bin", documents=offsets)) == 3
    with pytest.raises(ValueError, match="by its header"):
        document_offsets(tmp_path / "x.bin", 9, np.uint8)


@pytest.mark.parametrize("kind", ["bin", "arrow", "megatron", "documents"])
def test_a_file_that_has_grown_is_not_taken_for_the_former(kind, tmp_path):
    pa = pytest.importorskip("pyarrow")

    def write(n):
        if kind == "arrow":
            table = pa.table({"input_ids": [[1] * 20] * n})
            with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as file:
                file.write_table(table)
            return TokenDataset(tmp_path / "x.arrow", 8, packing="concat")
        if kind == "megatron":
            return TokenDataset(megatron_index(tmp_path / "x", [20] * n), 8, packing="concat")
        np.zeros(20 * n, np.uint16).tofile(tmp_path / "x.bin")
        np.save(tmp_path / "x.npy", np.array([0, 20 * n]))
        documents = str(tmp_path / "x.npy") if kind == "documents" else None
        return TokenDataset(tmp_path / "x.bin", 8, packing="concat", documents=documents)

    stored = pickle.dumps(write(3))
    assert len(pickle.loads(stored)) == 8
    if kind == "documents":
        np.save(tmp_path / "x.npy", np.array([0, 30, 60]))
    else:
        write(5)
    with pytest.raises(ValueError, match="is another file than when the dataset was made"):
        pickle.loads(stored)


def test_a_file_of_tokens_is_named_once(tmp_path):
    pattern = shards(tmp_path)
    with pytest.raises(ValueError, match=r"part0\.bin is named twice"):
        TokenDataset([pattern, str(tmp_path / "part0.bin")], 8)


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    pattern = shards(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file"):
        TokenDataset(str(tmp_path / "none"), 8)
    with pytest.raises(ValueError, match="go from 0 to 900"):
        TokenDataset(pattern, 8, documents=[0, 900])
    (tmp_path / "odd.bin").write_bytes(b"abc")
    with pytest.raises(ValueError, match="no whole number of uint16: it is damaged, or"):
        TokenDataset(str(tmp_path / "odd.bin"), 8)
    (tmp_path / "bad.npy").write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"bad\.npy' is no array of integers"):
        TokenDataset(pattern, 8, documents=str(tmp_path / "bad.npy"))
    with pytest.raises(ValueError, match="lead out of the 1000 tokens"):
        dataset = TokenDataset(pattern, 8, documents=[0, 2000, 1000], packing="bfd")
        len(dataset)
    prefix = megatron_index(tmp_path / "data", [500, 500])
    damaged = (tmp_path / "data.idx").read_bytes()
    pointer = damaged.index(np.int64(1000).tobytes())  # of the second sequence, in bytes
    (tmp_path / "data.idx").write_bytes(
        damaged[:pointer] + np.int64(1001).tobytes() + damaged[pointer + 8 :]
    )
    with pytest.raises(ValueError, match=r"document 1 begins at byte 1001 .* 2 bytes of a token"):
        len(TokenDataset(prefix, 8, packing="bfd"))
    (tmp_path / "data.idx").write_bytes(damaged[:50])
    with pytest.raises(ValueError, match="it is damaged"):
        TokenDataset(prefix, 8)
    (tmp_path / "data.idx").write_bytes(b"x" + damaged[1:])
    with pytest.raises(ValueError, match="no index of Megatron's"):
        TokenDataset(prefix, 8)
