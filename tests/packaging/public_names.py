"""Prints the public names of the fastiter that is imported, with their signatures.

``python tests/packaging/public_names.py`` prints one line a name. Two versions have the same
interface if the lines are the same; with ``--docs`` each line ends with the docstring's first line.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import fastiter

#: Names that a base class is listed by: those of the package, and Python's own.
PUBLIC = {*fastiter.__all__, *dir(builtins), "TabularDataset", "DatasetMixin", "ABC"}


def modules() -> Iterator[ModuleType]:
    """Every module whose dotted name has no part with a leading underscore."""
    yield fastiter
    for info in pkgutil.walk_packages(fastiter.__path__, "fastiter."):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        try:
            yield importlib.import_module(info.name)
        except ImportError as error:  # of an extra
            print(f"left out: {error}", file=sys.stderr)


def signature(value: Any) -> str:
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return ""


def members(name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """(dotted name, kind and signature, object) of a name and, for a class, of its members."""
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__mro__[1:-1] if base.__name__ in PUBLIC)
        yield name, f"class{signature(value)} of ({bases})", value
        for member in sorted(dir(value)):
            if not member.startswith("_") or member in ("__init__", "__call__", "__getitem__"):
                found = inspect.getattr_static(value, member)
                plain = getattr(value, member, None)
                kind = type(found).__name__ if not callable(plain) else signature(plain)
                yield f"{name}.{member}", kind, plain
    elif callable(value):
        yield name, f"function{signature(value)}", value
    else:
        yield name, type(value).__name__, None


def lines(with_docs: bool) -> Iterator[str]:
    for module in modules():
        names = getattr(module, "__all__", None)
        for name in sorted(names if names is not None else []):
            for dotted, kind, value in members(f"{module.__name__}.{name}", getattr(module, name)):
                doc = (inspect.getdoc(value) or "").partition("\n")[0] if with_docs else ""
                yield f"{dotted}: {kind}" + (f"  # {doc}" if doc else "")


if __name__ == "__main__":
    print("\n".join(lines("--docs" in sys.argv[1:])))
