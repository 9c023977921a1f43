"""Finds the dataset, or loader, and the converter that the command line names."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import fastiter
from fastiter._util.failures import summary_of
from fastiter.iterators._tables import arrow_source

#: Exceptions of the user's code; a sys.exit() in it must not end the tool without a message.
RAISED = (Exception, SystemExit)


class UsageError(Exception):
    """The command line cannot be used; the text says why, and what to do."""


def load_dataset(name: str) -> Any:
    """The dataset, or `DataLoader` of torch, of ``MODULE:DATASET``: an object, or what a callable
    returns, called with its defaults. Of several loaders, in a tuple, list or dict, the first one.

    Exceptions of user code, when it is imported or called, are the cause of a UsageError.
    """
    found = load(name, "MODULE:DATASET")
    if callable(found) and (isinstance(found, type) or not _is_dataset(found)):
        _check_defaults(name, found)
        try:
            found = found()
        except RAISED as error:
            raise UsageError(
                f"{name}, called without arguments, raised {summary_of(error)}"
            ) from error
    several = list(found.values()) if isinstance(found, dict) else found
    if isinstance(several, (list, tuple)) and several and is_torch_loader(several[0]):
        found = several[0]
    if is_torch_loader(found):
        return found
    if not isinstance(found, str):
        found = arrow_source(found, False, frames=True)
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


def _check_defaults(name: str, function: Any) -> None:
    """Raise a UsageError if a callable has parameters without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # compiled callables may not tell
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in optional
    ]
    if needed:
        raise UsageError(
            f"{name} needs {', '.join(needed)}: give these defaults, or name a function that calls "
            "it with what you want to measure"
        )


def load_converter(name: str, padding: float | None) -> tuple[Callable[..., Any] | None, str]:
    """The converter of 'concat', 'none' or ``MODULE:CALLABLE``, and the code that names it."""
    if padding is not None and name != "concat":
        raise UsageError(f"--padding is for --converter concat, not for {name!r}")
    if name == "none":
        return None, ""
    if name == "concat":
        if padding is None:
            return fastiter.concat_examples, "fastiter.concat_examples"
        number = int(padding) if float(padding).is_integer() else padding
        code = f"functools.partial(fastiter.concat_examples, padding={number})"
        return partial(fastiter.concat_examples, padding=number), code
    found = load(name, "--converter: 'concat', 'none' or MODULE:CALLABLE")
    if not callable(found):
        raise UsageError(f"the converter {name} is {type(found).__qualname__}: it must be callable")
    return found, name.rpartition(":")[2]


def is_torch_loader(found: Any) -> bool:
    """Whether it is a `DataLoader` of torch, or of a subclass. Does not import torch."""
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and isinstance(found, torch.DataLoader)


def _is_dataset(found: Any) -> bool:
    has_rows = hasattr(found, "__getitem__") or hasattr(found, "__getitems__")
    return hasattr(found, "__len__") and has_rows and not isinstance(found, type)


def load(name: str, expected: str) -> Any:
    """The object of ``MODULE:NAME``, where MODULE may be a path; UsageError if there is none."""
    place, _, attribute = name.rpartition(":")  # a path may contain colons, too
    if not place or not attribute:
        raise UsageError(f"expected {expected}, not {name!r}")
    found: Any = _import_file(Path(place)) if place.endswith(".py") else _import(place)
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = ", ".join(n for n in dir(found) if not n.startswith("_")) or "nothing"
            raise UsageError(f"{place} has no {attribute!r} outside of functions; it has {names}")
        found = getattr(found, part)
    return found


def _import(name: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except RAISED as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise UsageError(
                f"no module {missing!r} is found from {os.getcwd()}: run the command in its "
                "directory, set PYTHONPATH, or give a path that ends in .py"
            ) from None
        raise UsageError(f"importing {name} raised {summary_of(error)}") from error


def _import_file(path: Path) -> ModuleType:
    """Import a file by its name, which spawned workers find in the same `sys.path`."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    module = _import(path.stem)
    file = getattr(module, "__file__", None)
    if not path.samefile(file or os.devnull):
        raise UsageError(
            f"{path} cannot be imported as {path.stem!r}: that is another module, "
            f"{file or 'of Python itself'}; rename the file"
        )
    return module
