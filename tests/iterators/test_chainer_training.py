"""Chainer's own training loop on our iterators: nothing but the import is another.

Chainer knows a bare iterator by its class, so iterators are passed as ``{"main": iterator}``.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from fastiter import concat_examples

chainer = pytest.importorskip("chainer", reason="Chainer does not import here")
training = chainer.training
extensions = chainer.training.extensions

N_EXAMPLES = 22
random = np.random.RandomState(7)
EXAMPLES = [
    (random.rand(3).astype(np.float32), np.int32(random.randint(2))) for _ in range(N_EXAMPLES)
]


class Note(training.Extension):
    """Keeps what the updater says about the iterator after each update."""

    trigger = (1, "iteration")
    priority = training.PRIORITY_READER

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def __call__(self, trainer: Any) -> None:
        updater = trainer.updater
        self.seen.append(
            (
                updater.epoch,
                updater.epoch_detail,
                updater.previous_epoch_detail,
                updater.is_new_epoch,
            )
        )


def make_trainer(make: Any, out: Any, epochs: int, converter: Any) -> tuple[Any, Any, Note]:
    chainer.global_config.use_ideep = "never"
    model = chainer.links.Classifier(chainer.links.Linear(3, 2, initialW=np.eye(2, 3)))
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    iterator = make(EXAMPLES, 4)
    updater = training.updaters.StandardUpdater({"main": iterator}, optimizer, converter=converter)
    trainer = training.Trainer(updater, (epochs, "epoch"), out=str(out))
    validation = make(EXAMPLES, 5, repeat=False, shuffle=False)
    trainer.extend(extensions.Evaluator({"main": validation}, model, converter=converter))
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    trainer.extend(
        extensions.snapshot(filename="at_{.updater.iteration}"), trigger=(3, "iteration")
    )
    note = Note()
    trainer.extend(note)
    return trainer, model, note


def train(make: Any, out: Any, converter: Any, resume: Any = None) -> tuple[Any, Note, list[Any]]:
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        trainer, model, note = make_trainer(make, out, 3, converter)
        if resume is not None:
            chainer.serializers.load_npz(resume, trainer)
        trainer.run()
    return model.predictor.W.array, note, trainer.get_extension("LogReport").log


@pytest.mark.parametrize("converter", [concat_examples, chainer.dataset.concat_examples])
def test_training_equals_that_on_chainers_iterator(make, tmp_path, converter):
    theirs, their_note, their_log = train(
        chainer.iterators.SerialIterator, tmp_path / "theirs", chainer.dataset.concat_examples
    )
    ours, our_note, our_log = train(make, tmp_path / "ours", converter)
    np.testing.assert_array_equal(ours, theirs)
    assert our_note.seen == their_note.seen
    key = "validation/main/loss"
    assert [entry[key] for entry in our_log] == [entry[key] for entry in their_log]


def test_snapshot_in_mid_epoch_resumes_with_the_remaining_batches(make, tmp_path):
    _, whole, _ = train(make, tmp_path, concat_examples)
    np.random.seed(99)
    _, resumed, _ = train(make, tmp_path, concat_examples, resume=tmp_path / "at_9")
    assert resumed.seen == whole.seen[9:]
