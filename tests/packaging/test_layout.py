"""The layout of the sources: which package may import which, and how big files and folders get.

``python tests/packaging/test_layout.py`` prints the tables of packages that pages have, the
packages in import order with their sources and lines, and every import that points upwards.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
MAX_LINES = {"fastiter": 600, "csrc": 600}  # of a file; 900 of tests and benchmarks
MAX_SOURCES = 15
# Each package imports only what stands before it, and itself. __init__ is fastiter's own, which
# offers the public names.
LAYERS = {
    "basics": ("errors", "_clib", "_util"),
    "content of batches": ("_order", "_plan", "_ring", "_device", "_collate", "_fetch", "_stats"),
    "workers, which executors use": ("_workers", "_threads"),
    "loop and executors": ("_engine",),
    "public names": (
        *("dataset", "datasets", "images", "iterators", "tokens", "reader", "random", "kernels"),
        *("ray", "interop", "torch", "__init__"),
    ),
    "commands": ("_cli", "__main__"),
}
ORDER = tuple(package for packages in LAYERS.values() for package in packages)
# One file for each public class, and what these share.
MANY_SOURCES = {"fastiter/datasets", "fastiter/iterators"}
ENTRIES = 28  # of fastiter/, folders and files
# Most lines of each package of fastiter/, with stubs, of its files beside packages, and of csrc/
# without the model. They are to fall; a higher number needs a decision page.
CEILINGS = {
    "_cli": 2_957,
    "_clib": 1_931,
    "_collate": 1_551,
    "_device": 887,
    "_engine": 1_248,
    "_fetch": 4_699,
    "_order": 2_077,
    "_plan": 1_856,
    "_ring": 4_250,
    "_stats": 1_415,
    "_threads": 1_426,
    "_util": 1_246,
    "_workers": 4_738,
    "csrc": 10_174,
    "dataset": 1_542,
    "datasets": 4_036,
    "files": 610,
    "images": 701,
    "interop": 484,
    "iterators": 4_765,
    "ray": 1_145,
    "reader": 994,
    "tokens": 1_273,
    "torch": 6_741,
}


def rank(module: str) -> int:
    """Place of a dotted module name in the order. Raises ValueError for one that has none."""
    parts = module.split(".")
    return ORDER.index(parts[1] if len(parts) > 1 else "__init__")


def module_name(path: Path, top: Path) -> str:
    parts = path.relative_to(top).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes but those that only a type checker reads."""
    nodes = []
    for child in ast.iter_child_nodes(tree):
        if not is_type_checking(child):
            nodes += [child, *run_time_nodes(child)]
    return nodes


def with_submodules(base: str, names: list[str], top: Path) -> set[str]:
    """The modules that ``from base import names`` imports."""
    folder = top / base.replace(".", "/")
    files = [*folder.glob("*.p*"), *folder.glob("*/__init__.py")]
    modules = {path.parent.name if path.name == "__init__.py" else path.stem for path in files}
    found = {f"{base}.{name}" for name in names if name in modules}
    return found if len(found) == len(names) else found | {base}


def python_imports(path: Path, top: Path, hints: bool = False) -> set[str]:
    """Dotted names that a Python file imports at run time, at any depth, relative ones resolved;
    with `hints`, those for a type checker, too."""
    names = set()
    package = module_name(path, top).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    tree = ast.parse(path.read_text(), str(path))
    for node in ast.walk(tree) if hints else run_time_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + node.module.split(".") if node.module else base
            names |= with_submodules(".".join(base), [alias.name for alias in node.names], top)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__")
            and isinstance(node.args[0], ast.Constant)
        ):
            names.add(node.args[0].value)
    return names


def cython_imports(path: Path, top: Path) -> set[str]:
    """The same of a Cython file, `cimport` included."""
    text = re.sub(r"#[^\n]*", "", path.read_text())
    names = set()
    for base, listed in re.findall(
        r"^[ \t]*from[ \t]+(\S+)[ \t]+c?import[ \t]+(\([^)]*\)|[^\n]*)", text, re.MULTILINE
    ):
        words = [word.split()[0] for word in listed.strip("() \n").split(",") if word.strip()]
        names |= with_submodules(base, words, top)
    names |= set(re.findall(r"^[ \t]*c?import[ \t]+([\w.]+)", text, re.MULTILINE))
    return names


def sources_of(top: Path) -> list[Path]:
    package = top / "fastiter"
    return sorted(path for path in package.rglob("*.*") if path.suffix in (".py", ".pyx", ".pxd"))


def imports_of(top: Path, hints: bool = False) -> dict[str, set[str]]:
    """Per module of fastiter, the modules of fastiter that it imports."""
    found: dict[str, set[str]] = {}
    for path in sources_of(top):
        if path.suffix == ".py":
            all_names = python_imports(path, top, hints)
        else:
            all_names = cython_imports(path, top)
        names = {name for name in all_names if name.split(".")[0] == "fastiter"}
        found.setdefault(module_name(path, top), set()).update(names)
    return found


def faults_of(top: Path) -> list[str]:
    """Imports that point upwards, circles of packages, and modules that the order does not name."""
    faults = []
    for module, names in imports_of(top).items():
        for name in sorted({module, *names}):
            try:
                rank(name)
            except ValueError:
                faults.append(f"{name}, met in {module}: its package has no place in ORDER")
        if not faults:
            faults += [
                f"{module} imports {name}, which stands after it"
                for name in sorted(names)
                if rank(name) > rank(module)
            ]
    return faults


def circles_of(top: Path) -> set[frozenset[str]]:
    """Files that import one another in a circle, by type hints too."""
    imports = imports_of(top, hints=True)
    reached: dict[str, set[str]] = {}
    for module in imports:
        found, left = set(), [module]
        while left:
            new = imports.get(left.pop(), set()) - found
            found |= new
            left += new
        reached[module] = found
    groups = (
        frozenset(other for other in reached[module] if module in reached.get(other, ()))
        for module in imports
    )
    return {group for group in groups if len(group) > 1}


c_sources = sorted([*(TOP / "csrc").rglob("*.c"), *(TOP / "csrc").rglob("*.h")])
cython_sources = sorted((TOP / "fastiter").rglob("*.pyx"))


def relative(path: Path) -> str:
    return str(path.relative_to(TOP))


def test_imports_point_downwards():
    assert faults_of(TOP) == []


def test_no_files_import_one_another():
    assert circles_of(TOP) == set()


def test_the_errors_import_nothing():
    assert python_imports(TOP / "fastiter" / "errors.py", TOP) <= {"__future__"}


@pytest.mark.parametrize("path", cython_sources, ids=relative)
def test_each_binding_has_a_stub(path):
    assert path.with_suffix(".pyi").exists()


def test_c_is_declared_in_one_place():
    for path in [*cython_sources, *(TOP / "fastiter").rglob("*.pxd")]:
        folders = set(re.findall(r'cdef extern from "(\w+)/fi_\w+\.h"', path.read_text()))
        own = {f"csrc_{folder}" for folder in folders} if len(folders) == 1 else set()
        is_ours = relative(path.parent) == "fastiter/_clib" and path.stem in {"csrc", *own}
        assert is_ours or not folders, f"{path} declares C of {folders}"


@pytest.mark.parametrize("path", c_sources, ids=relative)
def test_c_knows_neither_python_nor_numpy(path):
    for header in re.findall(r"#\s*include\s*[<\"]([^>\"]+)[>\"]", path.read_text()):
        assert header != "Python.h" and not header.startswith("numpy/")


# Folders of csrc in the order of their includes, as the packages above.
C_ORDER = ("base", "os", "order", "batch", "ring")


@pytest.mark.parametrize("path", c_sources, ids=relative)
def test_includes_point_downwards(path):
    own = C_ORDER.index(path.parent.name)
    for folder in re.findall(r"#\s*include\s*\"(\w+)/", path.read_text()):
        assert C_ORDER.index(folder) <= own, f"{relative(path)} includes a header of {folder}"


def test_cupy_is_imported_in_one_place():
    importers = {
        relative(path)
        for path in sources_of(TOP)
        if re.search(r"^\s*(?:from|import)\s+cupy\b|import_module\(.cupy", path.read_text(), re.M)
    }
    assert importers == {"fastiter/_device/cupy.py"}


# Private attributes of iterators and of their parts: tests ask tests/support/inside.py instead.
INSIDE = re.compile(r"(?<!self)(?<!fastiter)\._(?:pool|planner|reading|threads|group)\b|[.]ring\b")


def test_tests_reach_into_iterators_in_one_place():
    tests = (TOP / "tests").rglob("*.py")
    assert {relative(path) for path in tests if INSIDE.search(path.read_text())} == {
        "tests/support/inside.py"
    }


def test_tests_import_their_support_by_its_own_names():
    # `tests` is no package where an installed one is tested, from outside of the sources.
    wrong = [
        relative(path)
        for path in (TOP / "tests").rglob("*.py")
        if re.search(r"^\s*(?:from|import) tests\b", path.read_text(), re.MULTILINE)
    ]
    assert wrong == []


def test_no_file_is_too_long():
    folders = ("fastiter", "tests", "bench", "examples")
    sources = [
        *TOP.glob("*.py"),
        *c_sources,
        *cython_sources,
        *(path for folder in folders for path in (TOP / folder).rglob("*.py")),
        *(TOP / "tests").rglob("*.c"),
    ]
    lengths = {relative(path): len(path.read_text().splitlines()) for path in sources}
    too_long = {f: n for f, n in lengths.items() if n > MAX_LINES.get(f.split("/")[0], 900)}
    assert too_long == {}


def test_no_package_outgrows_its_ceiling():
    found = dict.fromkeys(CEILINGS, 0)
    for path in (TOP / "fastiter").rglob("*"):
        if path.suffix in (".py", ".pyx", ".pxd", ".pxi", ".pyi"):
            package, *within = path.relative_to(TOP / "fastiter").parts
            found[package if within else "files"] += len(path.read_text().splitlines())
    found["csrc"] = sum(
        len(path.read_text().splitlines()) for path in c_sources if "model" not in path.parts
    )
    assert {name: n for name, n in found.items() if n > CEILINGS[name]} == {}


def listed(pattern: str) -> list[Path]:
    """Files that git tracks, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    return [Path(name) for name in subprocess.check_output(command, cwd=TOP, text=True).split()]


def modules_per_folder(folder: str) -> dict[str, set[str]]:
    """Per folder, the modules in it: a binding with its stub and declarations is one."""
    found: dict[str, set[str]] = {}
    for path in listed(folder):
        if path.suffix in (".py", ".pyx", ".pxd", ".c", ".h") and path.stem != "__init__":
            found.setdefault(str(path.parent), set()).add(path.stem)
    return found


@pytest.mark.skipif(not (TOP / ".git").exists(), reason="no git checkout")
def test_no_folder_is_too_full():
    folders = {**modules_per_folder("fastiter"), **modules_per_folder("csrc")}
    full = {name for name, modules in folders.items() if len(modules) > MAX_SOURCES}
    assert full <= MANY_SOURCES
    assert len({path.parts[1] for path in listed("fastiter")}) <= ENTRIES


def place_of(package: str) -> Path:
    """The folder or file of a package."""
    folder = TOP / "fastiter" / package
    return folder if folder.is_dir() else folder.with_suffix(".py")


def table_of_packages() -> str:
    """The packages, each with the first sentence of its docstring."""
    first = (TOP / "csrc" / "README.md").read_text().split("\n\n")[1].partition(".")[0]
    rows = [("csrc/", first.replace("\n", " "))]
    for package in ORDER:
        place = place_of(package)
        source = place / "__init__.py" if place.is_dir() else place
        text = ast.get_docstring(ast.parse(source.read_text())) or ""
        sentence = re.split(r"\.\s|\.$", text, maxsplit=1)[0].replace("\n", " ")
        rows.append((place.name + "/" * place.is_dir(), sentence.replace("``", "`")))
    lines = ["| package | holds |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows)]
    return "\n".join(lines) + "\n"


def table_of_layers() -> str:
    """The packages of each layer, from the one that imports all others downwards."""
    rows = [
        (layer, ", ".join(f"`{place_of(package).name}`" for package in LAYERS[layer]))
        for layer in reversed(LAYERS)
    ]
    rows.append(("C", "`csrc`: [C11 without Python and NumPy](ring.md)"))
    lines = ["| layer | packages |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)]
    return "\n".join(lines) + "\n"


def test_pages_have_the_tables_of_packages():
    """As ``python tests/packaging/test_layout.py`` prints them."""
    assert table_of_packages() in (TOP / "CONTRIBUTING.md").read_text()
    assert table_of_layers() in (TOP / "docs" / "internals" / "architecture.md").read_text()


def main() -> int:
    print(table_of_packages(), table_of_layers(), sep="\n")
    imports, faults = imports_of(TOP), faults_of(TOP)
    print(f"{'package':12} {'sources':>7} {'lines':>7}  imports")
    for place, package in enumerate(ORDER):
        own = [path for path in sources_of(TOP) if rank(module_name(path, TOP)) == place]
        lines = sum(len(path.read_text().splitlines()) for path in own)
        used = [name for module in imports if rank(module) == place for name in imports[module]]
        others = sorted({rank(name) for name in used} - {place})
        print(f"{package:12} {len(own):7} {lines:7}  {' '.join(ORDER[other] for other in others)}")
    print(f"imports that point upwards: {len(faults)}; without one there is no circle of packages")
    print("\n".join(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
