"""``python -m fastiter tokens``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastiter.__main__ import main
from fastiter.tokens import TokenDataset

SIZES = np.random.default_rng(0).integers(0, 50, 1000)


@pytest.fixture
def files(tmp_path):
    np.zeros(SIZES.sum(), np.uint32).tofile(tmp_path / "a.bin")
    np.save(tmp_path / "a.npy", np.concatenate([[0], np.cumsum(SIZES)]))
    return [str(tmp_path / "a.bin"), "--dtype=uint32", f"--documents={tmp_path / 'a.npy'}"]


def test_json_tells_lengths_and_efficiencies(files, capsys):
    assert main(["tokens", *files, "--json", "--length", "64", "--length", "20"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["tokens"]) == (1000, SIZES.sum())
    for bar in found["histogram"]:
        assert bar["documents"] == ((bar["from"] <= SIZES) & (bar["to"] >= SIZES)).sum()
    assert sum(bar["documents"] for bar in found["histogram"]) == 1000
    for row in found["lengths"]:
        assert row["padded"] == SIZES.sum() / ((-(-SIZES // row["length"])).sum() * row["length"])
        for packing in ("concat", "bfd"):
            dataset = TokenDataset(
                files[0],
                row["length"],
                packing=packing,
                dtype=np.uint32,
                documents=files[2].partition("=")[2],
            )
            assert row[packing] == SIZES.sum() / (len(dataset) * row["length"])
    assert [row["length"] for row in found["lengths"]] == [64, 20]


def test_the_table_and_the_chart(files, capsys, tmp_path):
    assert main(["tokens", *files]) == 0
    text = capsys.readouterr().out
    assert text.startswith("1,000 documents") and "32 .. 63" in text and " 4096" in text
    pytest.importorskip("matplotlib")
    assert main(["tokens", *files, "--png", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_parquet_files_are_read(capsys, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    for number, sizes in enumerate(np.split(SIZES, 2)):
        table = pa.table({"input_ids": [[1] * size for size in sizes], "other": sizes})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    assert main(["tokens", str(tmp_path / "*.parquet"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["tokens"]) == (1000, SIZES.sum())
    assert main(["tokens", str(tmp_path / "0.parquet"), "--column", "none"]) == 2
    assert "no column 'none' among ['input_ids', 'other']" in capsys.readouterr().err


def test_what_is_wrong_is_said(files, capsys):
    assert main(["tokens", files[0] + "x"]) == 2
    assert "FileNotFoundError" in capsys.readouterr().err
