"""That CuPy has what the package and its tests ask of it: names, parameters.

It needs CuPy, and no GPU: nothing here calls CUDA. `test_gpu` does.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from cupy_standin import Machine, make_cupy

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

TOP = Path(__file__).resolve().parents[2]
ROOTS = {
    "cupy": "",
    "_cupy": "",
    "cuda": "cuda.",
    "runtime": "cuda.runtime.",
    "_runtime": "cuda.runtime.",
}
SOURCES = [
    *sorted((TOP / "fastiter" / "_device").glob("*.py")),
    *sorted((TOP / "fastiter" / "_collate").glob("*.py")),
    TOP / "bench" / "device.py",
    *(
        TOP / "tests" / "device" / f"{name}.py"
        for name in ("test_gpu", "test_device", "test_async_transfer")
    ),
]


def chain(node: ast.AST) -> list[str]:
    """The names of ``a.b.c``, the outermost first; none if it begins with something else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def names_used() -> set[str]:
    """Dotted names of CuPy's module that the sources mention."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = chain(node)
            if names[:1] == ["self"]:
                names = names[1:]
            if len(names) > 1 and names[0] in ROOTS:
                found.add(ROOTS[names[0]] + ".".join(names[1:]))
    return found - {"cuda.is_available"}  # torch's


def resolve(name: str):
    found = cupy
    for part in name.split("."):
        found = getattr(found, part)
    return found


def parameters(thing) -> list[str] | None:
    """Names of the parameters, by the signature or, of compiled ones, their documentation."""
    try:
        return [name for name in inspect.signature(thing).parameters if name != "self"]
    except (ValueError, TypeError):
        pass
    match = re.match(r"[\w.]+\((.*?)\)(?: ->.*)?$", (thing.__doc__ or "").partition("\n")[0])
    if match is None:
        return None
    words = [part.partition("=")[0].split() for part in match[1].split(",")]
    return [word[-1] for word in words if word and word[-1] not in ("self", "*")]


def test_the_sources_were_understood():
    used = names_used()
    assert {"cuda.runtime.hostRegister", "cuda.Event", "cuda.UnownedMemory", "full"} <= used


@pytest.mark.parametrize("name", sorted(names_used()))
def test_cupy_has_the_name(name):
    resolve(name)


def callables(module, path: str = ""):
    for name, thing in vars(module).items():
        if hasattr(thing, "__dict__") and not callable(thing):
            yield from callables(thing, f"{path}{name}.")
        elif callable(thing) and not name.startswith("_") and name != "ndarray":
            yield path + name, thing


STANDIN = make_cupy(Machine())


@pytest.mark.parametrize(("name", "thing"), list(callables(STANDIN)), ids=lambda x: str(x)[:40])
def test_the_stand_in_takes_what_cupy_takes(name, thing):
    if name.endswith("CUDARuntimeError"):
        assert issubclass(resolve(name), RuntimeError)
        return
    ours, theirs = parameters(thing), parameters(resolve(name))
    assert theirs is not None, resolve(name).__doc__
    # By position or by name: either finds the same parameter.
    shared = [parameter for parameter in ours if parameter in theirs]
    assert ours == shared
    assert name == "cuda.Event" or name == "cuda.Stream" or ours == theirs[: len(ours)]


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (STANDIN.ndarray, "ndarray"),
        (STANDIN.cuda.Stream, "cuda.Stream"),
        (type(STANDIN.cuda.Event()), "cuda.Event"),
        (type(STANDIN.cuda.Device()), "cuda.Device"),
        (STANDIN.cuda.MemoryPointer, "cuda.MemoryPointer"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_methods_are_cupys(ours, name):
    theirs = resolve(name)
    own = {"of", "empty", "work", "content", "bound_to", "queue", "machine"}  # not for the package
    names = {n for n in dir(ours) if not n.startswith("_")} - own
    assert names
    for method in names:
        assert hasattr(theirs, method), method
        found = parameters(getattr(ours, method)) if callable(getattr(ours, method)) else None
        expected = parameters(getattr(theirs, method))
        if found and expected is not None:
            assert set(found) <= set(expected), method


def test_streams_know_their_handle_and_their_device():
    assert {"ptr", "device_id"} <= set(vars(cupy.cuda.Stream.null))
    assert cupy.cuda.Stream.null.device_id == -1
    assert type(cupy.cuda.Device(3)).__module__.startswith("cupy.")
