"""Samples of two readers, each in a process, merged into one stream."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, WrongResult

NAME = "reader"
TITLE = "samples of two readers in processes, merged: an endless pass, start not counted"

N_READERS = 2
PAGE = 4096
SHAPE = (224, 224, 3)  # 150,528 bytes
N_IMAGES = 8  # of each reader; the same again and again, so that making them costs nothing

Reader = Callable[[], Iterator[Any]]
Samples = Iterator[Any]


def _images(reader: int) -> Samples:
    pool = np.empty((N_IMAGES, *SHAPE), np.uint8)
    pool[...] = np.arange(N_IMAGES).reshape(-1, 1, 1, 1) + N_IMAGES * reader
    return ((pool[number % N_IMAGES], reader, number) for number in itertools.count())


def _vectors(reader: int) -> Samples:
    return zip(itertools.repeat(np.full(16, reader, np.float32)), *_numbered(reader))


def _numbers(reader: int) -> Samples:
    return zip(itertools.repeat(float(reader)), *_numbered(reader))


def _words(reader: int) -> Samples:
    return zip(itertools.repeat("a sample's name"), *_numbered(reader))


def _numbered(reader: int) -> tuple[Iterator[int], Iterator[int]]:
    return itertools.repeat(reader), itertools.count()


def _check_image(value: Any, reader: int, number: int) -> bool:
    """One byte of each page, and the type."""
    seen = value.reshape(-1)[::PAGE]
    return value.shape == SHAPE and bool((seen == number % N_IMAGES + N_IMAGES * reader).all())


def _check_vector(value: Any, reader: int, number: int) -> bool:
    return len(value) == 16 and value[15] == reader


def _check_number(value: Any, reader: int, number: int) -> bool:
    return bool(value == reader)


def _check_word(value: Any, reader: int, number: int) -> bool:
    return bool(value == "a sample's name")


class Consumer:
    """Takes samples of a pass, and sees that each reader's come in order, each once."""

    def __init__(self, samples: Samples, check: Callable[[Any, int, int], bool]) -> None:
        self._samples = samples
        self._check = check
        self._next = [0] * N_READERS

    def __call__(self, count: int) -> int:
        due, check = self._next, self._check
        for _ in range(count):
            value, reader, number = next(self._samples)
            if number != due[reader] or not check(value, reader, number):
                raise WrongResult(f"reader {reader}: {number} came, {due[reader]} was due")
            due[reader] = number + 1
        return count


@contextlib.contextmanager
def _fastiter(make: Any, check: Any) -> Iterator[Consumer]:
    from fastiter.reader import multiprocess_reader

    readers = [partial(make, number) for number in range(N_READERS)]
    samples = multiprocess_reader(readers, context="fork")()
    with contextlib.closing(samples):
        yield Consumer(samples, check)


@contextlib.contextmanager
def _paddle(make: Any, check: Any, use_pipe: bool) -> Iterator[Consumer]:
    from paddle.reader import multiprocess_reader

    multiprocessing.set_start_method("fork", force=True)  # its readers are closures
    readers = [partial(make, number) for number in range(N_READERS)]
    try:
        yield Consumer(multiprocess_reader(readers, use_pipe)(), check)
    finally:  # it ends none of its processes
        for process in multiprocessing.active_children():
            process.kill()


def _put_all(make: Any, number: int, queue: Any) -> None:
    for sample in make(number):
        queue.put(sample)


@contextlib.contextmanager
def _queue(make: Any, check: Any) -> Iterator[Consumer]:
    """As one writes it by hand."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue(1000)
    processes = [
        context.Process(target=_put_all, args=(make, number, queue), daemon=True)
        for number in range(N_READERS)
    ]
    for process in processes:
        process.start()
    try:
        yield Consumer(iter(queue.get, None), check)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _expect(result: int, source: int) -> None:
    if result != source:
        raise WrongResult(f"{result} samples came, {source} were due")


def _case(name: str, make: Any, check: Any, count: int, nbytes: int, goals: list[Any]) -> Case:
    candidates: dict[str, Any] = {
        "fastiter": partial(_fastiter, make, check),
        "paddle.queue": partial(_paddle, make, check, use_pipe=False),
    }
    if nbytes == 0:  # its pipes take JSON only
        candidates["paddle.pipe"] = partial(_paddle, make, check, use_pipe=True)
    candidates["python.queue"] = partial(_queue, make, check)
    return Case(
        name=name,
        sources=lambda: [count],
        candidates=candidates,
        check=_expect,
        items=count,
        item="sample",
        nbytes=nbytes * count,
        goals=goals,
        processes=True,
    )


def cases(quick: bool) -> Iterator[Case]:
    few = 8 if quick else 1
    paddle = "paddle"
    yield _case(
        "(float, int, int)", _numbers, _check_number, 20_000 // few, 0,
        [] if quick else [Goal(paddle, 10)],
    )  # fmt: skip
    if quick:
        return
    yield _case("(str, int, int)", _words, _check_word, 20_000, 0, [Goal(paddle, 10)])
    yield _case("(float32[16], int, int)", _vectors, _check_vector, 20_000, 64, [Goal(paddle, 10)])
    yield _case(
        "(uint8[224, 224, 3], int, int)", _images, _check_image, 2_000,
        int(np.prod(SHAPE)), [Goal(paddle, 20)],
    )  # fmt: skip
