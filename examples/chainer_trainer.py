"""Chainer's Trainer with batches from worker processes: two lines differ from Chainer's own.

The iterators come from fastiter, and `as_chainer` makes Chainer take them for its own, so that
updaters, Evaluators and snapshots work unchanged. Needs Chainer 7.8.1 (Python 3.10 or 3.11, NumPy
below 1.24)::

    python examples/chainer_trainer.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import chainer
import numpy as np
from chainer.training import Trainer, extensions, updaters

from fastiter import MultiprocessIterator, concat_examples
from fastiter.interop import as_chainer


class Rings(chainer.dataset.DatasetMixin):
    """Points in the plane, and whether they lie outside of the unit circle."""

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed

    def __len__(self) -> int:
        return self.n

    def get_example(self, i: int) -> tuple[np.ndarray, np.int32]:
        point = np.random.default_rng((self.seed, i)).normal(0, 1, 2).astype(np.float32)
        return point, np.int32(np.hypot(*point) > 1)


class Network(chainer.Chain):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.hidden = chainer.links.Linear(2, 32)
            self.scores = chainer.links.Linear(32, 2)

    def forward(self, points: np.ndarray) -> chainer.Variable:
        return self.scores(chainer.functions.relu(self.hidden(points)))


def make_trainer(out: Path, epochs: int) -> Trainer:
    """All of it is Chainer, but the iterators and the converter."""
    model = chainer.links.Classifier(Network())
    optimizer = chainer.optimizers.Adam(0.01).setup(model)
    train = as_chainer(MultiprocessIterator(Rings(2000, seed=0), 50, n_processes=2))
    test = as_chainer(
        MultiprocessIterator(Rings(500, seed=1), 50, repeat=False, shuffle=False, n_processes=1)
    )
    updater = updaters.StandardUpdater(train, optimizer, converter=concat_examples)
    trainer = Trainer(updater, (epochs, "epoch"), out=str(out))
    trainer.extend(extensions.Evaluator(test, model, converter=concat_examples))
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.PrintReport(["epoch", "main/loss", "validation/main/accuracy"]))
    trainer.extend(extensions.snapshot(filename="snapshot"), trigger=(1, "epoch"))
    return trainer


def main() -> None:
    chainer.global_config.use_ideep = "never"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        make_trainer(out, epochs=2).run()
        resumed = make_trainer(out, epochs=4)  # a new program would go on like this
        chainer.serializers.load_npz(out / "snapshot", resumed)
        resumed.run()
        accuracy = resumed.get_extension("LogReport").log[-1]["validation/main/accuracy"]
    print(f"test accuracy after 4 epochs: {accuracy:.2f}")


if __name__ == "__main__":
    main()
