"""Examples of caches, and datasets that note what is asked of them."""

from __future__ import annotations

import contextlib
import copy
import threading

import numpy as np


class Counted:
    """A dataset that notes which rows were asked for."""

    def __init__(self, examples):
        self.examples, self.asked = list(examples), []

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        self.asked.append(i)
        example = self.examples[i]
        if isinstance(example, Exception):
            raise example
        return copy.deepcopy(example)


def rows_of(n=20, step=100):
    return [(np.arange(i * step, dtype=np.float32) + i, i) for i in range(n)]


@contextlib.contextmanager
def in_threads(function, n_threads):
    """Threads that call the function, with their number, again and again while the block runs."""
    is_over = threading.Event()

    def run(number):
        while not is_over.is_set():
            function(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
