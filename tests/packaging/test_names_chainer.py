"""Each public name of Chainer's iterators and datasets, with its parameters and methods."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

import fastiter

chainer = pytest.importorskip("chainer", reason="Chainer does not import here")

PUBLIC_DATA = {"cifar", "fashion_mnist", "kuzushiji_mnist", "mnist", "ptb", "svhn"}
MODULES = ("iterators", "dataset", "datasets", "dataset.tabular", "dataset.download")

#: Names that have no counterpart, and why.
ABSENT = {"iterators.DaliIterator": "wraps another loader"}


def inner(module: ModuleType, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def public(path: str) -> list[str]:
    """Callables that a module of Chainer's defines or imports from its own parts."""
    home = f"chainer.{path}"
    return sorted(
        name
        for name, value in vars(inner(chainer, path)).items()
        if not name.startswith("_")
        and callable(value)
        and value.__module__.startswith(home)
        and value.__module__.rpartition(".")[2] not in PUBLIC_DATA
    )


NAMES = [f"{path}.{name}" for path in MODULES for name in public(path)]


def test_their_names_are_found():
    assert len(NAMES) >= 45
    assert set(ABSENT) <= set(NAMES)


def parameters(function: Any) -> list[inspect.Parameter]:
    function = getattr(function, "base_callable", function)  # what Chainer's decorator wraps
    return [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ABSENT])
def test_a_name_is_there_with_its_parameters(name):
    __import__(f"fastiter.{name.rpartition('.')[0]}")
    ours, theirs = inner(fastiter, name), inner(chainer, name)
    assert name.rpartition(".")[2] in inner(fastiter, name.rpartition(".")[0]).__all__
    if callable(theirs) and not (inspect.isclass(theirs) and "__init__" not in vars(theirs)):
        same_parameters(ours, theirs)
    if inspect.isclass(theirs):
        for method, value in vars(theirs).items():
            if not method.startswith("_") or method in ("__call__", "__getitem__", "__len__"):
                assert hasattr(ours, method), method
                if inspect.isfunction(value):
                    same_parameters(getattr(ours, method), value)


def same_parameters(ours: Any, theirs: Any) -> None:
    found, wanted = parameters(ours), parameters(theirs)
    if ours.__name__ == "get_example":  # has many names there for the index that __getitem__ gives
        assert len(found) == len(wanted)
        return
    assert [p.name for p in found][: len(wanted)] == [p.name for p in wanted]
    for mine, other in zip(found, wanted, strict=False):
        if other.default is other.empty:
            assert mine.default is other.empty or mine.default is None
        else:
            assert mine.default is not other.empty
            if not hasattr(other.default, "__dict__"):  # a mark of theirs is none of ours
                assert mine.default in (other.default, None)
    assert all(p.default is not p.empty for p in found[len(wanted) :])
