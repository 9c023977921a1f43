"""``python -m fastiter profile`` of a DataLoader of torch."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run

torch = pytest.importorskip("torch", reason="torch is not installed")
data = torch.utils.data

from fastiter._cli.profile.loader import LoaderSubject  # noqa: E402
from fastiter._cli.profile.trials import Settings, Trials  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

LOADERS = """
    import torch
    from fastiter.torch import DataLoader

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return torch.full((5,), i), i

    class Broken(Rows):
        def __getitem__(self, i):
            raise KeyError("no such file")

    loader = torch.utils.data.DataLoader(Rows(), 4, shuffle=True, num_workers=1)
    broken = torch.utils.data.DataLoader(Broken(), 4)
    empty = torch.utils.data.DataLoader([], 4)

    def make_own(batch_size=4):
        return DataLoader(Rows(), batch_size, num_workers=2, prefetch_factor=3)

    def make_both():
        return make_own(), broken

    def make_of(path, workers):
        return make_own()

    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parsed = torch.utils.data.DataLoader(Rows(), parser.parse_args().batch_size, num_workers=1)
"""


def profile(folder: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "loaders.py").write_text(textwrap.dedent(LOADERS))
    arguments = ("loaders.py:" + name, "--budget", "1", "--start-methods", "fork", *options)
    few = "ignore:This DataLoader will create:UserWarning"  # where there is one processor
    return run("-W", few, "-m", "fastiter", "profile", *arguments, cwd=folder)


def test_a_loader_is_measured_in_both_classes(tmp_path: Path) -> None:
    answer = profile(tmp_path, "loader", "--workers", "1,2")
    assert (answer.returncode, answer.stderr) == (0, "")
    rows = [line.split() for line in answer.stdout.splitlines() if line.startswith("  ")]
    now, other = [row for row in rows if row[1:3] == ["1", "2"]][:2]
    assert (now[0], other[0]) == ("torch.utils.data", "fastiter.torch")
    assert "now" in now
    assert float(now[3]) > 0
    assert float(other[3]) > 0
    assert "import DataLoader\n    DataLoader(..., num_workers=" in answer.stdout
    assert "With workers, fastiter.torch is " in answer.stdout
    assert "An epoch of 10 batches: " in answer.stdout
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("name", ["make_own", "make_both"])
def test_a_function_may_return_fastiters_own(tmp_path: Path, name: str) -> None:
    """With its defaults; of two loaders the first one is measured."""
    answer = profile(tmp_path, name, "--workers", "2", "--step", "0.05")
    assert (answer.returncode, answer.stderr) == (0, "")
    (now,) = (line.split() for line in answer.stdout.splitlines() if "<- now" in line)
    assert now[:3] == ["fastiter.torch", "2", "3"]
    assert "The loop waits " in answer.stdout


def test_a_program_that_parses_its_arguments_sees_none(tmp_path: Path) -> None:
    """Neither in this process nor where spawned workers import it."""
    options = ("--workers", "1", "--start-methods", "spawn", "--batch-size", "32")
    answer = profile(tmp_path, "parsed", *options)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "An epoch of 5 batches: " in answer.stdout


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("make_of", (), "make_of needs path, workers: give these defaults, or name a function"),
        ("broken", (), "the loader gives no batches: KeyError: 'no such file'"),
        ("empty", (), "the loader has no batches"),
        ("loader", ("--batch-size", "8", "--json"), "--batch-size, --json: for a dataset, not"),
    ],
)
def test_errors(tmp_path: Path, name: str, options: tuple[str, ...], expected: str) -> None:
    answer = profile(tmp_path, name, "--workers", "1", *options)
    assert answer.returncode == 2
    assert expected in answer.stderr


class Counting(data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


LIKE = {
    "sampler": {"batch_size": 4, "sampler": [5, 3, 9, 1, 7], "drop_last": True},
    "batch_sampler": {"batch_sampler": [[1, 2], [9], [0, 0, 4]]},
    "single examples": {"batch_size": None},
    "collate_fn": {"batch_size": 3, "collate_fn": np.array},
}


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        *((name, list(range(10))) for name in LIKE),
        *((name, Counting()) for name in LIKE if "sampler" not in name),  # torch refuses these
    ],
)
def test_what_is_tried_is_like_the_loader(name: str, dataset: Any) -> None:
    given = data.DataLoader(dataset, **LIKE[name])
    expected = [np.asarray(batch).tolist() for batch in given]
    for settings in (Settings("serial"), Settings("torch", 1, 2), Settings("fastiter", 1, 2)):
        loader = LoaderSubject(given, 0.0)._made(settings)
        assert type(loader) is (DataLoader if settings.kind == "fastiter" else data.DataLoader)
        assert loader.num_workers == settings.workers
        assert [np.asarray(batch).tolist() for batch in loader] == expected


def test_epochs_that_end_are_begun_again() -> None:
    class Epochs(data.SequentialSampler):
        begun = 0

        def __iter__(self) -> Any:
            Epochs.begun += 1
            return super().__iter__()

    examples = [torch.zeros(3)] * 4
    trials = Trials(Settings("serial"))
    loader = data.DataLoader(examples, 2, sampler=Epochs(examples))
    LoaderSubject(loader, 0.0).run(trials, 0.05)
    assert (trials.error, len(trials.rates), len(trials.firsts)) == ("", 1, 1)
    assert Epochs.begun > 1  # three batches at least, of which an epoch has two


def test_torch_is_not_imported_for_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "numbers_here.py").write_text("numbers = list(range(20))\n")
    options = ["numbers_here.py:numbers", "--budget", "0.3", "--workers", "1"]
    program = (
        "import sys; from fastiter.__main__ import main; "
        f"status = main(['profile', *{options!r}, '--start-methods', 'fork']); "
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    answer = run("-c", program, cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
