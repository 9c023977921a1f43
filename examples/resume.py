"""Stop in the middle of an epoch, and go on in another process as if nothing had happened.

A child process trains, and is killed after a few batches, without warning. It has written a
checkpoint after each: the model, and the iterator's `state_dict()`. A second child resumes it, with
another number of workers, and sees exactly the batches that were missing, augmentations too::

    python examples/resume.py
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import numpy as np

from fastiter import MultiprocessIterator, ShuffleOrderSampler, concat_examples
from fastiter.random import example_rng


class Augmented:
    """Numbers with noise, which differs from epoch to epoch and is the same for any worker."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> tuple[int, float]:
        return i, float(example_rng().normal())


def train(path: Path, n_batches: int, n_processes: int, killed: bool) -> None:
    """Go on to batch `n_batches`, from the checkpoint if there is one."""
    total, seen = 0.0, []
    with MultiprocessIterator(
        Augmented(),
        8,
        order_sampler=ShuffleOrderSampler(7),
        n_processes=n_processes,
        n_prefetch=3,  # what was fetched ahead is not lost: it was not delivered
        converter=concat_examples,
    ) as iterator:
        if path.exists():
            checkpoint = json.loads(path.read_text())
            total, seen = checkpoint["total"], checkpoint["seen"]
            iterator.load_state_dict(checkpoint["iterator"])
        while len(seen) < n_batches:
            indices, noise = next(iterator)
            total += float(noise.sum())  # the "model"
            seen.append(indices.tolist())
            checkpoint = {"total": total, "seen": seen, "iterator": iterator.state_dict()}
            path.with_suffix(".new").write_text(json.dumps(checkpoint))
            path.with_suffix(".new").replace(path)  # never a half-written one
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(*arguments: object) -> int:
    child = multiprocessing.Process(target=train, args=arguments)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole.json", Path(folder) / "parts.json"
        assert in_child(whole, 20, 2, False) == 0
        print(f"killed by signal {-in_child(parts, 9, 2, True)} in the second epoch")
        assert in_child(parts, 20, 1, False) == 0
        first, second = (json.loads(path.read_text()) for path in (whole, parts))
        assert first["seen"] == second["seen"] and first["total"] == second["total"]
        print(f"resumed: the same {len(second['seen'])} batches, and the same sum of noise")
        print(f"checkpoint of the iterator: {json.dumps(second['iterator'])}")
        assert len(np.unique(np.concatenate(second["seen"][:6]))) == 48


if __name__ == "__main__":
    main()
