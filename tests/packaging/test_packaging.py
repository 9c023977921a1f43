"""Installed files, and the error of an installation that lacks its compiled half."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import types
import typing
from pathlib import Path

import pytest
from programs import run

import fastiter

INSTALLED = Path(fastiter.__file__).parent
PACKAGE = Path(__file__).resolve().parents[2] / "fastiter"
MODULES = ["dataset", "datasets", "errors", "images", "interop", "iterators", "kernels", "random"]
MODULES += ["reader", "tokens"]
BINDINGS = sorted(str(path.relative_to(PACKAGE).with_suffix("")) for path in PACKAGE.rglob("*.pyx"))


def test_version_is_that_of_the_metadata():
    assert fastiter.__version__ == importlib.metadata.version("fastiter-loader")


@pytest.mark.parametrize("name", [*(f"{b}.pyi" for b in BINDINGS), "py.typed"])
def test_types_are_installed(name):
    assert (INSTALLED / name).is_file()


@pytest.mark.parametrize("name", BINDINGS)
def test_bindings_are_compiled(name):
    assert [path.suffix for path in INSTALLED.glob(f"{name}.*.so")]


def test_public_names_are_all_there():
    missing = [name for name in fastiter.__all__ if not hasattr(fastiter, name)]
    assert missing == []


def test_completion_offers_public_names_alone():
    names = {name for name in dir(fastiter) if not name.startswith("__")}
    modules = {name for name in names if isinstance(getattr(fastiter, name), types.ModuleType)}
    assert names - modules == set(fastiter.__all__)
    assert all(getattr(fastiter, name).__name__ == f"fastiter.{name}" for name in modules)
    assert not any(name.startswith("_") for name in modules)


def test_public_modules_are_there_without_an_import_of_their_own():
    lines = [
        "import os, fastiter",
        f"for name in {MODULES}:",
        "    if os.fork() == 0:",  # none has what another has imported
        "        print(getattr(fastiter, name).__name__, name in dir(fastiter), flush=True)",
        "        os._exit(0)",
        "    os.wait()",
    ]
    printed = run("-c", "\n".join(lines)).stdout.splitlines()
    assert printed == [f"fastiter.{name} True" for name in MODULES]


@pytest.mark.parametrize("name", [*MODULES, "torch"])
def test_hints_of_public_names_resolve(name):
    """As libraries read them that make arguments of a command, or check types while they run."""
    if name == "torch":
        pytest.importorskip("torch")
    module = importlib.import_module(f"fastiter.{name}")
    public = [getattr(module, each) for each in module.__all__]
    classes = {base for each in public if isinstance(each, type) for base in each.__mro__}
    ours = [each for each in classes if each.__module__.startswith("fastiter")]
    members = [
        getattr(member, "fget", getattr(member, "func", member))
        for each in ours
        for of_member, member in vars(each).items()
        if not of_member.startswith("_") or of_member in ("__init__", "__iter__", "__enter__")
    ]
    for each in [*public, *members]:
        is_generated = "<string>" in getattr(getattr(each, "__code__", None), "co_filename", "")
        is_of_torchs = name == "torch" and isinstance(each, type)  # whose own do not
        if isinstance(each, (type, types.FunctionType)) and not (is_generated or is_of_torchs):
            typing.get_type_hints(each)


@pytest.mark.parametrize("kind", ["SerialIterator", "MultithreadIterator", "MultiprocessIterator"])
def test_a_batch_sampler_has_the_type_that_iterators_ask_for(kind):
    hints = typing.get_type_hints(getattr(fastiter, kind).__init__)
    assert fastiter.EpochSampler in typing.get_args(hints["batch_sampler"])


def test_folder_of_the_same_name_beside_a_script_is_not_imported(tmp_path):
    """As a clone is for scripts in the folder above it. Fails for an editable installation made
    before pyproject.toml had its package-dir: repeat ``pip install -e .``"""
    (tmp_path / "fastiter" / "fastiter").mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text("import fastiter; print(fastiter.MultiprocessIterator.__module__)")
    # Without the path of these tests, which would find another one first.
    done = run(script, env=None)
    assert (done.stdout, done.stderr) == ("fastiter.iterators.multiprocess\n", "")


def test_import_needs_no_other_package_than_numpy():
    code = (  # NumPy may have made Cython's module, or may not
        "import sys, numpy; before = set(sys.modules) - {'cython_runtime'}; "
        "from fastiter import SerialIterator; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    loaded = {name for name in run("-c", code).stdout.split() if not name.startswith("_")}
    assert loaded - set(sys.stdlib_module_names) - {"numpy"} == {"fastiter", "cython_runtime"}


def test_import_leaves_out_what_takes_long_and_few_need():
    slow = "numpy.random fastiter.datasets multiprocessing pathlib json tempfile hashlib logging"
    code = "import numpy, sys; had = {*sys.modules}; import fastiter; print(*{*sys.modules} - had)"
    loaded = {*run("-c", code).stdout.split()}
    assert "fastiter.iterators.serial" in loaded and not loaded & {*slow.split()}


def test_a_program_under_run_imports_numpy_itself(tmp_path):
    """Variables that NumPy reads then may be set before."""
    (tmp_path / "program.py").write_text(
        "import sys, fastiter\nprint('numpy' in sys.modules)\n"
        "fastiter.SerialIterator\nprint('numpy' in sys.modules)\n"
    )
    done = run("-m", "fastiter", "run", tmp_path / "program.py")
    assert done.stdout.split() == ["False", "True"]


FIRST_USES = """
import importlib, sys, threading
import {library}, fastiter
sys.setswitchinterval(1e-6)
names = {names}.split()
begin = threading.Barrier(len(names))
def use(name):
    begin.wait()
    if "." in name:
        print(importlib.import_module("fastiter." + name.strip(".")))
    else:
        print(getattr(fastiter, name))
for name in names:
    threading.Thread(target=use, args=[name]).start()
"""


@pytest.mark.parametrize("attempt", range(3))  # some of these failed
@pytest.mark.parametrize(
    ("library", "names"),
    [
        (
            "numpy",
            "Iterator interop MultiprocessIterator OverwrittenError cache MultithreadIterator",
        ),
        ("torch", "torch. interop. datasets. MultiprocessIterator iterators.multiprocess"),
    ],
    ids=["names", "packages"],
)
def test_threads_import_at_a_time(library, names, attempt, tmp_path):
    if library == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "program.py").write_text(FIRST_USES.format(library=library, names=repr(names)))
    # Where fastiter's names are imported on first use.
    done = run("-m", "fastiter", "run", tmp_path / "program.py")
    assert len(done.stdout.split("\n")) == len(names.split()) + 1, done.stderr
    assert "Error" not in done.stderr


def test_without_ray_the_error_says_what_to_install():
    done = run("-c", "import sys; sys.modules['ray'] = None; import fastiter.ray")
    expected = "ModuleNotFoundError: fastiter.ray needs Ray: pip install ray"
    assert expected in done.stderr


def test_a_tree_that_is_not_compiled_names_the_command(tmp_path):
    for path in PACKAGE.rglob("*.py"):
        copy = tmp_path / path.relative_to(PACKAGE.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    # -S: an editable installation would find the compiled modules of the tree that it belongs to.
    done = run("-S", "-c", "import fastiter", cwd=tmp_path, env=None)
    assert done.returncode == 1
    told = done.stderr.rpartition("\nImportError: ")[2]
    assert str(tmp_path / "fastiter") in told
    assert "start Python in another folder" in told and "pip install -e ." in told


def test_files_of_another_distribution_are_reported(tmp_path):
    """PyPI's fastiter has modules in the folder of the same name."""
    folder = tmp_path / "fastiter"
    shutil.copytree(INSTALLED, folder, ignore=shutil.ignore_patterns("*.pyx", "__pycache__"))
    assert {path.name for path in folder.glob("*.py")} == fastiter._FILES
    command = "-S", "-c", f"import sys; sys.path[1:1] = {sys.path!r}; import fastiter"
    clean = run(*command, cwd=tmp_path, env=None)
    assert (clean.returncode, clean.stderr) == (0, "")
    (folder / "adapters.py").touch()
    told = run(*command, cwd=tmp_path, env=None)
    assert told.returncode == 0
    assert "RuntimeWarning: another distribution has put adapters.py into" in told.stderr


SETUP = PACKAGE.parent / "setup.py"


@pytest.mark.parametrize(
    ("before", "argument", "expected"),
    [
        ("sys.platform = 'darwin'", "egg_info", "runs on Linux.*This is darwin, which is not"),
        ("sys.platform = 'win32'", "bdist_wheel", "runs on Linux.*WSL 2"),
        ("sys.implementation.name = 'pypy'", "bdist_wheel", "CPython.*This is pypy"),
        (
            "os.environ['CC'] = 'no-such-cc -O2'",
            "bdist_wheel",
            "compiler, and 'no-such-cc'",
        ),
        ("sysconfig.get_path = lambda name: '/none'", "build_ext", "/none/Python.h was not found"),
    ],
)
def test_where_it_cannot_be_built_one_statement_says_so(before, argument, expected, tmp_path):
    # What setup.py imports comes first: shutil of 3.12 and newer asks for modules of Windows.
    code = (
        f"import os, pathlib, runpy, shutil, sys, sysconfig; {before}; "
        f"sys.argv = ['setup.py', {argument!r}]; runpy.run_path({str(SETUP)!r})"
    )
    done = run("-c", code, cwd=tmp_path, env={**os.environ, "CC": "sh", "FASTITER_PORTABLE": ""})
    assert done.returncode == 1
    assert re.fullmatch(rf"\n.*{expected}.*\n\n", done.stderr)
