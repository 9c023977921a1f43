"""The demonstration: its data, what it prints and writes, and what it leaves behind."""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import re
import signal
import subprocess
import sys
from collections import Counter
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from programs import environment

import fastiter
from fastiter.__main__ import main
from fastiter._cli.demo import digits

DEMO = ["-m", "fastiter", "demo"]
EXAMPLE = [str(Path(__file__).parents[2] / "examples" / "digits.py")]
START_METHODS = multiprocessing.get_all_start_methods()


def start(arguments: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: list[str], tmp_path: Path, *options: str) -> str:
    """Run to the end and return what was printed.

    `communicate` returns when the pipes are closed by every process that inherited them: a
    worker, or a server of workers, that outlived the program would make it time out.
    """
    cwd = tmp_path / "cwd"
    cwd.mkdir(exist_ok=True)
    with start([*program, "--out", str(tmp_path / "out"), *options], cwd) as process:
        try:
            printed, errors = process.communicate(timeout=100)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert list(cwd.iterdir()) == []
    return printed


def epoch_lines(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if re.match(r"epoch \d", line)]


def test_data_is_the_published_test_set() -> None:
    packed = resources.files("fastiter._cli.demo").joinpath("digits.csv.gz").read_bytes()
    readme = resources.files("fastiter._cli.demo").joinpath("README.txt").read_text()
    assert hashlib.sha256(packed).hexdigest() in readme
    assert "CC BY 4.0" in readme
    values = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=int)
    assert values.shape == (1797, 65)
    assert (values[:, :64].min(), values[:, :64].max()) == (0, 16)
    # The class distribution that the creators publish for their test set.
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(values[:, 64]).tolist() == counts


@pytest.mark.parametrize(
    "options",
    [
        ["demo", "--out", "/proc/out"],
        ["profile", "json:x", "--trace", "missing/trace.json"],
        ["tokens", "none.bin", "--png", "missing/chart.png"],
    ],
)
def test_files_that_cannot_be_written_are_told_first(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(options)
    assert caught.value.code == 2
    assert f"argument {options[-2]}: cannot be written: [Errno 2]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_splits_are_disjoint_and_complete() -> None:
    training, test = digits.load_digits(seed=0)
    assert (len(training), len(test)) == (6000, 297)
    packed = resources.files("fastiter._cli.demo").joinpath("digits.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()
    assert Counter(training.lines + test.lines) == Counter(lines)


def test_examples_are_augmented_alike_each_time_and_each_view_anew() -> None:
    training, test = digits.load_digits(seed=0)
    image, label, index = training[7]
    assert (image.shape, image.dtype, index) == ((16, 16), np.float32, 7)
    assert label == int(training.lines[7].rpartition(",")[2])
    np.testing.assert_array_equal(image, training[7][0])
    other_view, other_label, _ = training[7 + 1500]
    assert other_label == label
    assert not np.array_equal(image, other_view)
    assert not np.array_equal(image, digits.load_digits(seed=1)[0][7][0])
    pixels = [int(text) for text in test.lines[7].split(",")[:64]]
    corners = np.reshape(pixels, (8, 8))[::7, ::7] / 16
    np.testing.assert_allclose(test[7][0][::15, ::15], corners, atol=2e-3)


def test_images_are_turned_magnified_and_moved() -> None:
    """Of a plane in the place of an image, every point can be told."""
    rows, columns = np.mgrid[:8, :8].astype(float)
    plain = digits.render(rows, 0, 1, (0, 0))
    np.testing.assert_allclose(plain[:, 0], np.linspace(-0.5, 7.5, 16).clip(0, 6.999))
    inner = slice(3, 13)
    moved = digits.render(rows, 0, 1, (0.25, 0.5))
    np.testing.assert_allclose(moved[inner, inner], plain[inner, inner] - 0.25)
    zoomed = digits.render(rows, 0, 2, (0, 0))
    np.testing.assert_allclose(zoomed[inner, inner] - 3.5, (plain[inner, inner] - 3.5) / 2)
    quarter = digits.render(rows, np.pi / 2, 1, (0, 0))
    across = digits.render(columns, 0, 1, (0, 0))
    np.testing.assert_allclose(quarter[inner, inner], 7 - across[inner, inner])


def test_classifier_descends_the_gradient() -> None:
    model = digits.Classifier(seed=0, n_blocks=3, n_features=4)
    rng = np.random.default_rng(0)
    model.projection = model.projection.astype(np.float64)
    before = model.weights = rng.normal(size=model.weights.shape)
    images, labels = rng.random((5, 16, 16)), np.arange(5)
    model.velocity = np.zeros_like(before)

    def loss(weights: np.ndarray) -> float:
        model.weights = weights
        scores = model.forward(images)[1]
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return -log_p[np.arange(5), labels].mean()

    direction = rng.normal(size=before.shape)
    slope = (loss(before + 1e-6 * direction) - loss(before - 1e-6 * direction)) / 2e-6
    model.weights = before.copy()
    assert model.step(images, labels) == pytest.approx(loss(before))
    assert slope == pytest.approx(-(model.velocity * direction).sum() / model.rate, rel=1e-4)


def test_example_is_the_demo() -> None:
    assert Path(EXAMPLE[0]).read_bytes() == Path(digits.__file__).read_bytes()


@pytest.mark.stress  # README's command, which each change runs, is this
def test_demo_from_end_to_end(tmp_path: Path) -> None:
    printed = run(DEMO, tmp_path)
    accuracy = re.search(r"^test accuracy (\d\.\d\d)$", printed, re.MULTILINE)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.95
    assert len(epoch_lines(printed)) == 5
    assert "exactly the 60 remaining batches" in printed
    with np.load(tmp_path / "out" / "snapshot.npz") as snapshot:
        assert snapshot["current_position"] == 3000
        assert sorted(snapshot["order"]) == list(range(6000))
    assert all(len(line) <= 80 for line in printed.splitlines() if str(tmp_path) not in line)


@pytest.mark.stress  # one runs as the default, another as the example
@pytest.mark.parametrize("method", START_METHODS)
def test_every_start_method(method: str, tmp_path: Path) -> None:
    printed = run(DEMO, tmp_path, "--epochs", "1", "--start-method", method)
    assert "exactly the 60 remaining batches" in printed


@pytest.mark.slow
def test_example_runs_where_workers_import_it_as_main(tmp_path: Path) -> None:
    printed = run(EXAMPLE, tmp_path, "--epochs", "1", "--start-method", "forkserver")
    assert "exactly the 60 remaining batches" in printed


@pytest.mark.stress
def test_training_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    printed = [run(DEMO, tmp_path, "--epochs", "1", "--processes", n) for n in ("1", "3")]
    assert epoch_lines(printed[0])
    assert epoch_lines(printed[0]) == epoch_lines(printed[1])


def test_learning_curve_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.png"
    assert digits.draw_curve([0.5, 0.25], [0.9, 0.95], path) == str(path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_missing_matplotlib_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path = tmp_path / "curve.png"
    assert "matplotlib is not installed" in digits.draw_curve([0.5], [0.9], path)
    assert not path.exists()


def test_interrupt_ends_it_without_a_traceback(tmp_path: Path) -> None:
    with start([*DEMO, "--epochs", "1000", "--out", str(tmp_path / "out")], tmp_path) as process:
        try:
            for line in process.stdout:
                if line.startswith("epoch 1 "):
                    break
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from fastiter.__main__ import main

    assert main([]) == 2
    listed = capsys.readouterr().out
    assert all(f"\n    {command} " in listed for command in ("demo", "doctor", "profile"))
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"fastiter {fastiter.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "invalid choice: 'nothing'"),
        (["demo", "--epochs", "0"], "--epochs: expected an integer of at least 1, not '0'"),
        (["demo", "--start-method", "threads"], "--start-method: invalid choice: 'threads'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from fastiter.__main__ import main

    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
