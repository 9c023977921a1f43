"""Finds the dataset and the converter that the command line names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import fastiter
from fastiter._ring.serialization import summary_of

#: What users' code raises; sys.exit() in it must not end the tool without a word.
RAISED = (Exception, SystemExit)


class UsageError(Exception):
    """What the user gave leads nowhere; the text says why, and what to do."""


def load_dataset(name: str) -> Any:
    """The dataset of ``MODULE:DATASET``: an object, or what a callable without arguments gives.

    Raises
    ------
    UsageError
        If the module, or the object, is not there, or it is no dataset. What user code raises when
        it is imported or called is the cause.
    """
    found = _load(name, "MODULE:DATASET")
    if callable(found) and (isinstance(found, type) or not _is_dataset(found)):
        try:
            found = found()
        except RAISED as error:
            raise UsageError(
                f"{name} is called without arguments and raised {summary_of(error)}"
            ) from error
    if not _is_dataset(found):
        raise UsageError(
            f"{name} is {type(found).__qualname__}, which is no dataset: it needs __len__, and "
            "__getitem__ or __getitems__"
        )
    try:
        length = len(found)
    except RAISED as error:
        raise UsageError(f"len() of {name} raised {summary_of(error)}") from error
    if length < 1:
        raise UsageError(f"{name} is empty: its length is {length}")
    return found


def load_converter(name: str, padding: float | None) -> Callable[..., Any] | None:
    """The converter that an option names: 'concat', 'none', or ``MODULE:CALLABLE``.

    Raises
    ------
    UsageError
        If it is not there, or cannot be called.
    """
    if name == "concat":
        if padding is None:
            return fastiter.concat_examples
        number = int(padding) if float(padding).is_integer() else padding
        return partial(fastiter.concat_examples, padding=number)
    if padding is not None:
        raise UsageError(f"--padding is for --converter concat, not for {name!r}")
    if name == "none":
        return None
    found = _load(name, "--converter: 'concat', 'none' or MODULE:CALLABLE")
    if not callable(found):
        raise UsageError(f"the converter {name} is {type(found).__qualname__}: it must be callable")
    return found  # type: ignore[no-any-return]


def _is_dataset(found: Any) -> bool:
    has_rows = hasattr(found, "__getitem__") or hasattr(found, "__getitems__")
    return hasattr(found, "__len__") and has_rows and not isinstance(found, type)


def _load(name: str, expected: str) -> Any:
    # The last colon: a path may have others.
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise UsageError(f"expected {expected}, not {name!r}")
    found: Any = _import_file(Path(place)) if place.endswith(".py") else _import(place)
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [n for n in dir(found) if not n.startswith("_")]
            raise UsageError(
                f"{place} has no {attribute!r}; it has {', '.join(names) or 'nothing'}"
            )
        found = getattr(found, part)
    return found


def _import(name: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"importing {name} raised {summary_of(error)}") from error
        raise UsageError(
            f"no module {error.name!r} is found from {os.getcwd()}: start in its directory, set "
            "PYTHONPATH, or give a path that ends in .py"
        ) from None
    except RAISED as error:
        raise UsageError(f"importing {name} raised {summary_of(error)}") from error


def _import_file(path: Path) -> ModuleType:
    """Imports a file by its name: spawned workers, which get `sys.path`, find it likewise."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    module = _import(path.stem)
    if not path.samefile(getattr(module, "__file__", None) or os.devnull):
        raise UsageError(
            f"{path} cannot be imported as {path.stem!r}: that is another module, "
            f"{getattr(module, '__file__', None) or 'of Python itself'}; rename the file"
        )
    return module
