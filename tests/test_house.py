"""The rules that keep the house standing: what each floor may know, and how big a file may grow."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
PACKAGE = TOP / "fastiter"
MAX_LINES = 600

# Private modules are on floor 2 and public ones on floor 3, except these.
FLOORS = {
    "errors": 1,
    "_arguments": 1,
    "_cpus": 1,
    "_descriptors": 1,
    "_csrc": 1,
    "_numpy": 1,
    "_order": 1,
    "_objects": 1,
    "_table": 1,
    "_numbers": 1,
    "_by_numpy": 1,
    "_buffers": 1,
    "_batch": 1,
    "_ring": 1,
    "_system": 1,
    "_arena": 1,
    "_parent_end": 1,
    "_worker_end": 1,
    "_lease": 1,
    "_virtual": 1,
    "_weighted": 1,
    "_memory": 1,
    "_demo": 3,
    "_tools": 3,
    "__main__": 3,
}

modules = sorted(PACKAGE.rglob("*.py"))
c_sources = sorted([*(TOP / "csrc").glob("*.c"), *(TOP / "csrc").glob("*.h")])
cython_sources = sorted(PACKAGE.rglob("*.pyx"))


def relative(path: Path) -> str:
    return str(path.relative_to(TOP))


def module_name(path: Path) -> str:
    parts = path.relative_to(TOP).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(module: str) -> int:
    """Floor of a dotted module name; fastiter itself re-exports the public names."""
    name = module.partition(".")[2].partition(".")[0]
    return FLOORS.get(name, 2 if name.startswith("_") else 3)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes but those that only a type checker reads."""
    nodes = []
    for child in ast.iter_child_nodes(tree):
        if not is_type_checking(child):
            nodes += [child, *run_time_nodes(child)]
    return nodes


def imported(path: Path) -> set[str]:
    """Dotted names that a Python file imports at run time, at any depth, relative ones resolved."""
    names = set()
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in run_time_nodes(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + node.module.split(".") if node.module else base
            # "from fastiter import x" names a module of fastiter, not fastiter itself.
            if base == ["fastiter"]:
                names |= {f"fastiter.{alias.name}" for alias in node.names}
            else:
                names.add(".".join(base))
    return names


def cython_imported(path: Path) -> set[str]:
    text = path.read_text()
    pattern = r"^\s*(?:from\s+(fastiter\S*)\s+c?import\s+(\w+)|c?import\s+(fastiter\S*))"
    names = set()
    for base, name, whole in re.findall(pattern, text, re.MULTILINE):
        names.add(f"fastiter.{name}" if base == "fastiter" else base or whole)
    return names


@pytest.mark.parametrize("path", modules, ids=relative)
def test_imports_point_downwards(path):
    own = floor(module_name(path))
    for name in imported(path):
        if name.split(".")[0] == "fastiter":
            assert floor(name) <= own, f"{relative(path)} (floor {own}) imports {name}"


def test_the_errors_import_nothing():
    assert imported(PACKAGE / "errors.py") <= {"__future__"}


@pytest.mark.parametrize("path", cython_sources, ids=relative)
def test_cython_imports_point_downwards(path):
    own = floor(module_name(path))
    for name in cython_imported(path):
        assert floor(name) <= own, f"{relative(path)} (floor {own}) imports {name}"


@pytest.mark.parametrize("path", cython_sources, ids=relative)
def test_each_binding_has_a_stub(path):
    assert path.with_suffix(".pyi").exists()


def test_c_is_declared_in_one_place():
    for path in [*cython_sources, *PACKAGE.rglob("*.pxd")]:
        ours = re.findall(r'cdef extern from "(fi_\w+\.h)"', path.read_text())
        assert path.name == "_csrc.pxd" or not ours, f"{relative(path)} declares {ours}"


@pytest.mark.parametrize("path", c_sources, ids=relative)
def test_c_knows_neither_python_nor_numpy(path):
    for header in re.findall(r"#\s*include\s*[<\"]([^>\"]+)[>\"]", path.read_text()):
        assert header != "Python.h" and not header.startswith("numpy/")


def test_cupy_is_imported_in_one_place():
    importers = {
        relative(path)
        for path in [*modules, *cython_sources]
        if re.search(r"^\s*(?:from|import)\s+cupy\b|import_module\(.cupy", path.read_text(), re.M)
    }
    assert importers == {"fastiter/_device/_cupy.py"}


def test_no_file_is_too_long():
    sources = [
        *TOP.glob("*.py"),
        *c_sources,
        *cython_sources,
        *(p for d in ("fastiter", "tests", "bench", "examples") for p in (TOP / d).rglob("*.py")),
        *(TOP / "tests").rglob("*.c"),
    ]
    lengths = {relative(path): len(path.read_text().splitlines()) for path in sources}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}
