"""Our datasets beside Chainer's: the same names, and the same results of any operations."""

from __future__ import annotations

import inspect
import os
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastiter import datasets

theirs = pytest.importorskip("chainer.datasets", reason="Chainer does not import here")

PUBLIC_DATA = {"cifar", "fashion_mnist", "kuzushiji_mnist", "mnist", "ptb", "svhn"}


def their_names() -> list[str]:
    """Public names of chainer.datasets but those of particular sets of data."""
    return [
        name
        for name, value in vars(theirs).items()
        if callable(value) and value.__module__.rpartition(".")[2] not in PUBLIC_DATA
    ]


def test_their_names_are_found():
    assert len(their_names()) >= 20


@pytest.mark.parametrize("name", their_names())
def test_every_name_is_there_with_its_parameters(name):
    ours = getattr(datasets, name)
    assert name in datasets.__all__
    wanted = inspect.signature(getattr(theirs, name)).parameters.values()
    found = inspect.signature(ours).parameters
    positional = [p.name for p in wanted if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in found.values() if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    for parameter in wanted:
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            default = parameter.default
            if name == "get_cross_validation_datasets_random" and parameter.name == "n_folds":
                default = None  # so that n_fold, its old name, can be given instead
            assert found[parameter.name].default is default
    if inspect.isclass(ours):
        methods = {n for n in vars(getattr(theirs, name)) if not n.startswith("_")}
        assert methods <= set(dir(ours))


class Failed(str):
    """The kind of error that an operation raised."""


def outcome(function: Any, *args: Any) -> Any:
    """The result of a function, or the type of its error."""
    try:
        return plain(function(*args))
    except Exception as error:
        return Failed(type(error).__name__)


def plain(value: Any) -> Any:
    """Datasets and arrays as lists, so that they can be compared."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return plain(value[:]) if hasattr(value, "get_example") else value


small = st.integers(0, 4)
indices = st.one_of(
    st.integers(-8, 8),
    st.slices(8),
    st.lists(st.integers(-8, 8), max_size=3),
    st.lists(st.integers(-8, 8), min_size=1, max_size=3).map(np.array),
)
bases = st.one_of(
    st.lists(st.integers(0, 9), max_size=6),
    st.lists(st.integers(0, 9), max_size=6).map(np.array),
    st.text("abc", max_size=6),
    st.integers(0, 6).map(range),
)


@st.composite
def wrapped(draw: Any, depth: int = 0) -> Any:
    """A function that builds the same nest of datasets from one library or the other."""
    kind = draw(st.sampled_from(["base", "concatenated", "transformed", "part"]))
    if depth > 2 or kind == "base":
        base = draw(bases)
        return lambda library: base
    if kind == "concatenated":
        makers = draw(st.lists(wrapped(depth + 1), max_size=3))
        return lambda library: library.ConcatenatedDataset(*(make(library) for make in makers))
    make = draw(wrapped(depth + 1))
    if kind == "transformed":
        return lambda library: library.TransformDataset(make(library), lambda x: (x, "t"))
    seed, cut, as_list = draw(st.integers(0, 9)), draw(st.integers(0, 3)), draw(st.booleans())

    def part(library: Any) -> Any:
        below = make(library)
        order = np.random.RandomState(seed).permutation(len(below))
        start, finish = min(cut, len(below)), len(below)
        if as_list:
            order = order.tolist()
        return library.SubDataset(below, start, finish, order if seed else None)

    return part


@settings(max_examples=150)
@given(wrapped(), st.lists(indices, min_size=1, max_size=4))
def test_any_nest_of_datasets_gives_the_same(make, wanted):
    ours, expected = make(datasets), make(theirs)
    assert len(ours) == len(expected)
    for index in wanted:
        assert outcome(ours.__getitem__, index) == outcome(expected.__getitem__, index)


@given(
    size=st.integers(0, 12),
    name=st.sampled_from(
        ["split_dataset_random", "split_dataset_n_random", "get_cross_validation_datasets_random"]
    ),
    number=st.integers(1, 14),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_random_split_is_the_same(size, name, number, seed):
    ours, expected = getattr(datasets, name), getattr(theirs, name)
    assert outcome(ours, range(size), number, seed) == outcome(expected, range(size), number, seed)


@given(
    size=st.integers(0, 12),
    name=st.sampled_from(["split_dataset", "split_dataset_n", "get_cross_validation_datasets"]),
    number=st.one_of(st.integers(1, 14), st.just(1.5), st.none()),
    order=st.one_of(st.none(), st.integers(0, 12).map(lambda n: list(range(n))[::-1])),
)
def test_any_split_is_the_same(size, name, number, order):
    ours = outcome(getattr(datasets, name), range(size), number, order)
    expected = outcome(getattr(theirs, name), range(size), number, order)
    if isinstance(ours, Failed) and isinstance(expected, Failed):
        assert {ours, expected} <= {"TypeError", "ValueError"}
        return
    assert ours == expected


lines = st.lists(
    st.text(st.sampled_from("ab\u00e9\u3042 "), max_size=4), min_size=3, max_size=3
).map(lambda parts: "\r\n".join(parts) + "\n")


@settings(max_examples=40)
@given(st.lists(lines, min_size=1, max_size=3), st.sampled_from([None, "", "\n"]), indices)
def test_any_text_gives_the_same(texts, newline, index):
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for number, text in enumerate(texts):
            paths.append(os.path.join(directory, str(number)))
            with open(paths[-1], "w", encoding="utf-8", newline="") as file:
                file.write(text)
        options = {"encoding": "utf-8", "newline": newline, "filter_func": lambda x, *_: x > "a"}
        ours, expected = (library.TextDataset(paths, **options) for library in (datasets, theirs))
        assert ours[:] == expected[:]
        assert outcome(ours.__getitem__, index) == outcome(expected.__getitem__, index)
        expected.close()


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.integers(), st.text(), st.lists(st.floats(allow_nan=False)))),
    st.integers(0, 5),
    st.booleans(),
    indices,
)
def test_any_pickles_give_the_same(examples, protocol, from_ours, index):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "a.pkl")
        library = datasets if from_ours else theirs
        with library.open_pickle_dataset_writer(path, protocol) as writer:
            for example in examples:
                writer.write(example)
        with (
            datasets.open_pickle_dataset(path) as ours,
            theirs.open_pickle_dataset(path) as expected,
        ):
            assert ours[:] == expected[:] == examples
            assert outcome(ours.__getitem__, index) == outcome(expected.__getitem__, index)
