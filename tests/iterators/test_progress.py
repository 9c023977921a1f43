"""The progress bar: what it shows, and when it closes."""

from __future__ import annotations

import gc
import io
import re
import sys
import time

import pytest
from failing import Calling

import fastiter
from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator

tqdm = pytest.importorskip("tqdm")


class Screen(io.StringIO):
    """A file that keeps the bar as it was drawn each time."""

    def drawn(self):
        return [text for text in re.split(r"[\r\n]+", self.getvalue()) if text.strip()]


OPTIONS = {"mininterval": 0, "miniters": 1, "ncols": 100, "ascii": True}

KINDS = {
    "serial": SerialIterator,
    "threads": MultithreadIterator,
    "processes": lambda *args, **options: MultiprocessIterator(
        *args, n_processes=1, context="fork", **options
    ),
}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def test_one_epoch(make):
    screen = Screen()
    with make(list(range(20)), 8, repeat=False, shuffle=False) as iterator:
        batches = list(fastiter.progress(iterator, file=screen, **OPTIONS))
    assert batches == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    drawn = screen.drawn()
    assert drawn[0].startswith("epoch 0:   0%") and " 0.00/20.0 " in drawn[0]
    assert [" 8.00/20.0 " in text for text in drawn].count(True) >= 1
    assert drawn[-1].startswith("epoch 0: 100%") and " 20.0/20.0 " in drawn[-1]
    assert re.search(r" examples/s, waiting \d+%\]", drawn[-1])
    assert screen.getvalue().endswith("\n")  # it is closed, and the line is left


def test_epoch_after_epoch(make):
    """The examples that a batch has of the next epoch begin the next bar."""
    screen = Screen()
    with make(list(range(12)), 8) as iterator:
        for _, batch in zip(
            range(6), fastiter.progress(iterator, file=screen, **OPTIONS), strict=False
        ):
            assert len(batch) == 8
        assert (iterator.epoch, iterator.current_position) == (4, 0)
    text = "\n".join(screen.drawn())
    for epoch in range(4):
        assert f"epoch {epoch}: 100%" in text
    assert re.search(r"epoch 1: +\d+%.* 8.00/12.0 ", text) is None  # 4 of the batch before, then 8
    assert re.search(r"epoch 1: 100%.* 12.0/12.0 ", text)


def test_begins_where_the_iterator_stands(make):
    screen = Screen()
    with make(list(range(20)), 4, repeat=False) as iterator:
        next(iterator)
        next(iterator)
        bar = fastiter.progress(iterator, file=screen, desc="train", postfix="gpu 3", **OPTIONS)
        assert " 8.00/20.0 " in screen.drawn()[0]
        assert len(list(bar)) == 3
    assert screen.drawn()[-1].startswith("train epoch 0: 100%")
    assert "gpu 3, waiting" in screen.drawn()[-1]


def test_a_break_closes_the_bar_and_leaves_the_iterator_open(make):
    screen = Screen()
    with make(list(range(20)), 4) as iterator:
        for _ in fastiter.progress(iterator, file=screen, **OPTIONS):
            break
        gc.collect()  # for interpreters that do not count references
        assert screen.getvalue().endswith("\n")
        assert len(next(iterator)) == 4


def test_an_exception_closes_the_bar(make):
    screen = Screen()

    def loop():
        for _ in fastiter.progress(iterator, file=screen, **OPTIONS):
            raise KeyError("mine")

    with make(list(range(20)), 4) as iterator:
        with pytest.raises(KeyError, match="mine"):
            loop()
        gc.collect()
        assert screen.getvalue().endswith("\n")


def test_closes_with_its_block_and_twice():
    screen = Screen()
    with fastiter.progress(SerialIterator([1, 2], 1), file=screen, **OPTIONS) as bar:
        assert next(bar) in ([1], [2])
    drawn = screen.getvalue()
    assert drawn.endswith("\n")
    bar.close()
    assert len(next(bar)) == 1  # the batches go on, undrawn
    assert screen.getvalue() == drawn


def test_the_dataset_s_error_passes_and_the_bar_goes_on(make):
    screen = Screen()
    with make([1, None, 3, 4], 1, shuffle=False, repeat=False, converter=convert) as iterator:
        bar = fastiter.progress(iterator, file=screen, **OPTIONS)
        assert next(bar) == 2
        with pytest.raises(TypeError):
            next(bar)
        assert list(bar) == [6, 8]
    assert " 4.00/4.00 " in screen.drawn()[-1]


def convert(batch, device):
    return batch[0] * 2


def test_tells_the_share_of_waiting():
    screen = Screen()
    sleeping = Calling(lambda index: time.sleep(0.01), 8)
    with SerialIterator(sleeping, 2, repeat=False) as iterator:
        for _ in fastiter.progress(iterator, file=screen, **OPTIONS):
            pass
    share = int(re.search(r"waiting (\d+)%", screen.drawn()[-1])[1])
    assert share >= 50


def test_disabled():
    iterator = SerialIterator(list(range(20)), 8)
    for _, batch in zip(range(9), fastiter.progress(iterator, disable=True), strict=False):
        assert len(batch) == 8


def test_wrong_arguments(monkeypatch):
    with pytest.raises(TypeError, match="not list_iterator"):
        fastiter.progress(iter([1]))
    with pytest.raises(Exception, match="colour_of_bar"):
        fastiter.progress(SerialIterator([1], 1), colour_of_bar="red")
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        fastiter.progress(SerialIterator([1], 1))
