"""Chainer's own training loop on `as_chainer(iterator)`, which it takes for one of its own."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

from fastiter import SerialIterator, ShuffleOrderSampler, concat_examples, to_device
from fastiter.dataset import Converter, converter
from fastiter.interop import as_chainer

chainer = pytest.importorskip("chainer", reason="Chainer does not import here")
training = chainer.training
extensions = chainer.training.extensions

random = np.random.RandomState(7)
EXAMPLES = [(random.rand(3).astype(np.float32), np.int32(random.randint(2))) for _ in range(22)]


def same(iterator: Any) -> Any:
    return iterator


def train(
    make: Any, wrap: Any, out: Any, converter: Any, resume: Any = None
) -> tuple[Any, list[Any]]:
    np.random.seed(0)
    chainer.global_config.use_ideep = "never"
    model = chainer.links.Classifier(chainer.links.Linear(3, 2, initialW=np.eye(2, 3)))
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    updater = training.updaters.StandardUpdater(
        wrap(make(EXAMPLES, 4)), optimizer, converter=converter
    )
    trainer = training.Trainer(updater, (3, "epoch"), out=str(out))
    validation = wrap(make(EXAMPLES, 5, repeat=False, shuffle=False))
    trainer.extend(extensions.Evaluator(validation, model, converter=converter))
    trainer.extend(extensions.LogReport(trigger=(1, "epoch")))
    trainer.extend(
        extensions.snapshot(filename="at_{.updater.iteration}"), trigger=(3, "iteration")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if resume is not None:
            chainer.serializers.load_npz(resume, trainer)
        trainer.run()
    return model.predictor.W.array, trainer.get_extension("LogReport").log


@pytest.mark.parametrize("converter", [concat_examples, chainer.dataset.concat_examples])
def test_a_bare_iterator_trains_as_chainers_does(make, tmp_path, converter):
    theirs, their_log = train(chainer.iterators.SerialIterator, same, tmp_path / "t", converter)
    ours, our_log = train(make, as_chainer, tmp_path / "o", converter)
    np.testing.assert_array_equal(ours, theirs)
    key = "validation/main/loss"
    assert [entry[key] for entry in our_log] == [entry[key] for entry in their_log]
    assert len(our_log) == 3


class OwnConverter(Converter):
    def __call__(self, batch: Any, device: Any) -> Any:
        self.device = device
        return to_device(device, np.stack(batch))


def test_updaters_give_converters_a_device_or_its_number():
    own, devices = OwnConverter(), []

    def stack(batch: Any, device: Any) -> Any:
        devices.append(device)
        return device.send(np.stack(batch))

    for each in (own, converter()(stack)):
        link = chainer.links.Linear(3, 1)
        updater = training.updaters.StandardUpdater(
            as_chainer(SerialIterator(np.ones((4, 3), np.float32), 2)),
            chainer.optimizers.SGD(0.1).setup(link),
            converter=each,
            device="@numpy",
            loss_func=lambda x, link=link: chainer.functions.sum(link(x)),
        )
        updater.update()
    assert own.device == -1 and [device.xp for device in devices] == [np]


def test_the_trainer_resumes_a_snapshot_from_the_middle_of_an_epoch(make, tmp_path):
    def make_seeded(dataset: Any, batch_size: int, **arguments: Any) -> Any:
        if "shuffle" not in arguments:
            arguments["order_sampler"] = ShuffleOrderSampler(7)
        return make(dataset, batch_size, **arguments)

    whole, _ = train(make_seeded, as_chainer, tmp_path, concat_examples)
    resumed, _ = train(make_seeded, as_chainer, tmp_path, concat_examples, tmp_path / "at_9")
    np.testing.assert_array_equal(resumed, whole)


def test_chainers_serializers_save_and_load_it(make, tmp_path):
    theirs = as_chainer(make(EXAMPLES, 4))
    for _ in range(3):
        next(theirs)
    chainer.serializers.save_npz(tmp_path / "iterator.npz", theirs)
    rest = [next(theirs) for _ in range(2)]  # of the same epoch
    ours = as_chainer(make(EXAMPLES, 4))
    chainer.serializers.load_npz(tmp_path / "iterator.npz", ours)
    for batch in rest:
        assert [int(y) for _, y in next(ours)] == [int(y) for _, y in batch]


def test_it_has_the_attributes_of_what_it_wraps(make):
    inner = make(EXAMPLES, 4, shuffle=False)
    wrapped = as_chainer(inner)
    assert isinstance(wrapped, chainer.dataset.Iterator)
    for _ in range(7):
        next(wrapped)
        for name in ("epoch", "epoch_detail", "previous_epoch_detail", "is_new_epoch"):
            assert getattr(wrapped, name) == getattr(inner, name)
    assert (wrapped.batch_size, wrapped.repeat, len(wrapped)) == (4, True, 6)
    assert wrapped.dataset is inner.dataset
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = wrapped.no_such_thing


def test_a_copy_goes_on_alone(make):
    wrapped = as_chainer(make(EXAMPLES, 4, shuffle=False))
    next(wrapped)
    other = copy.copy(wrapped)
    loaded = pickle.loads(pickle.dumps(wrapped))
    try:
        following = [[int(y) for _, y in next(each)] for each in (wrapped, other, loaded)]
        assert isinstance(other, chainer.dataset.Iterator)
        assert isinstance(loaded, chainer.dataset.Iterator)
        assert following[0] == following[1] == following[2] == [int(y) for _, y in EXAMPLES[4:8]]
        next(other)
        assert (wrapped.current_position, other.current_position) == (8, 12)
    finally:
        other.finalize()
        loaded.finalize()


class Resetless:
    """An iterator of another library: Evaluators copy what has no ``reset``."""

    def __init__(self) -> None:
        self.left = 3

    def __next__(self) -> Any:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return EXAMPLES[:2]


def test_an_evaluator_copies_what_cannot_be_reset():
    model = chainer.links.Classifier(chainer.links.Linear(3, 2))
    wrapped = as_chainer(Resetless())
    evaluator = extensions.Evaluator(wrapped, model)
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match="does not have the reset method"):
            assert set(evaluator()) == {"main/loss", "main/accuracy"}
    assert wrapped.left == 3


def test_an_evaluator_resets(make):
    model = chainer.links.Classifier(chainer.links.Linear(3, 2))
    wrapped = as_chainer(make(EXAMPLES, 5, repeat=False, shuffle=False))
    evaluator = extensions.Evaluator(wrapped, model, converter=concat_examples)
    first, second = evaluator(), evaluator()
    assert first == second


def test_it_ends_with_finalize_and_not_with_the_wrapper():
    inner = SerialIterator(EXAMPLES, 4)
    as_chainer(inner).__del__()
    next(inner)
    with as_chainer(inner):
        pass
    with pytest.raises(RuntimeError, match="finalized"):
        next(inner)


def test_chainers_own_iterators_stay_as_they_are():
    iterator = chainer.iterators.SerialIterator(EXAMPLES, 4)
    assert as_chainer(iterator) is iterator


def test_what_is_no_iterator_is_refused():
    with pytest.raises(TypeError, match="list, which has no __next__"):
        as_chainer(EXAMPLES)
