"""``run``: runs a program with fastiter's workers in the place of torch's; reports on its loaders.

The program's `__main__`, arguments and exit are those of ``python SCRIPT``. Nothing here imports
torch: the patch comes right after the program's own first import of it.
"""

from __future__ import annotations

import argparse
import atexit
import builtins
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pkgutil
import sys
import types
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path
from typing import Any

_TORCH = "torch"
_NAMES = ("__file__", "__cached__", "__loader__", "__package__", "__spec__")  # of a module


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "python -m fastiter run [--compare] [--report FILE] (SCRIPT | -m MODULE) [ARGS]"
    parser.add_argument(
        "--compare",
        action="store_true",
        help="have fastiter and torch make the batches of every second loop each, and compare them",
    )
    parser.add_argument(
        "--report", metavar="FILE", help="write the figures as JSON; {rank} stands for the rank"
    )
    # The module is no value of -m: after -mMODULE argparse would read the program's own options.
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module")
    program = "the program, or a folder or zip file with its __main__.py; and its arguments"
    parser.add_argument("script", metavar="SCRIPT", nargs=argparse.REMAINDER, help=program)
    parser.set_defaults(is_program=True)


def run(options: argparse.Namespace) -> int:
    """Run the program. What it raises comes out, with the program's own traceback."""
    is_module, command = options.is_module, options.script
    if not command:
        print("python -m fastiter run: expected a SCRIPT or -m MODULE", file=sys.stderr)
        return 2
    sys.argv[:] = ["-m" if is_module else command[0], *command[1:]]
    main = types.ModuleType("__main__")
    if "__annotations__" in vars(sys.modules["__main__"]):  # by the interpreter, up to 3.13
        vars(main)["__annotations__"] = {}
    # By the second name, processes of multiprocessing send objects of the program's classes back.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    report = _Report(options)
    _patch_with_torch(report.patched)
    spawn.get_preparation_data = _prepared
    try:  # the packages of a module are parts of the program
        code, facts = (_module if is_module else _script)(command[0])
        if is_module:
            sys.argv[0] = facts["__file__"]
        vars(main).update(facts, __builtins__=builtins)
        exec(code(), vars(main))
    except _NoProgramError as error:
        atexit.unregister(report.give)
        print(f"python -m fastiter run: {error}", file=sys.stderr)
        return error.status
    except BaseException as error:
        report.status = _status_of(error)
        sys.excepthook = functools.partial(_print_error, sys.excepthook, error)
        raise
    return 0


# ---- the program ---------------------------------------------------------------------------------


class _NoProgramError(Exception):
    """There is no such script or module: the text, and the exit status that Python has then."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def _script(name: str) -> tuple[Callable[[], types.CodeType], dict[str, Any]]:
    """The code of a script, to be compiled, and the names that its module begins with; also of the
    ``__main__.py`` in a folder or zip file."""
    # As the interpreter joins them: ``link/../x.py`` is where the link leads.
    file = os.getcwd() if name == "." else os.path.join(os.getcwd(), name)
    if pkgutil.get_importer(file) is not None:
        sys.path[0] = file
        return _of_spec(importlib.machinery.PathFinder.find_spec("__main__", [file]), "__main__")
    try:
        with io.open_code(file) as lines:
            source = lines.read()
    except OSError as error:
        raise _NoProgramError(str(error), 2) from None
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    compiled = pkgutil.read_code(io.BytesIO(source))  # of a .pyc file, whatever its name is
    kind = "SourcelessFileLoader" if compiled else "SourceFileLoader"
    loader = getattr(importlib.machinery, kind)("__main__", file)
    facts = {**dict.fromkeys(_NAMES), "__file__": file, "__loader__": loader}
    return lambda: compiled or compile(source, file, "exec", dont_inherit=True), facts


def _module(name: str) -> tuple[Callable[[], types.CodeType], dict[str, Any]]:
    """The same of a module, or of the ``__main__`` of a package."""
    package = name.rpartition(".")[0]
    try:
        if package and not name.startswith("."):
            importlib.import_module(package)
    except ImportError as error:  # raised by a package, or it is one of these that is missing
        if not f"{package}.".startswith(f"{error.name}."):
            raise
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise _NoProgramError(str(error)) from None
    if spec is None or spec.submodule_search_locations is None:
        return _of_spec(spec, name)
    return _module(f"{name}.__main__")


def _of_spec(spec: Any, name: str) -> tuple[Callable[[], types.CodeType], dict[str, Any]]:
    code = None if spec is None or spec.loader is None else spec.loader.get_code(name)
    if code is None:
        raise _NoProgramError(f"there is no module {name!r} to run")
    facts = spec.origin, spec.cached, spec.loader, spec.parent, spec
    return lambda: code, dict(zip(_NAMES, facts, strict=True))


def _status_of(error: BaseException) -> int:
    """The exit status of a program that ends with this exception."""
    if not isinstance(error, SystemExit):
        return 130 if type(error) is KeyboardInterrupt else 1  # 1 of its subclasses, too
    if error.code is None:
        return 0
    return int(error.code) & 0xFF if isinstance(error.code, int) else 1  # as the system has it


def _runs(names: dict[str, Any]) -> bool:
    """Whether a frame with these globals is one of those by which a module is run."""
    return names is globals() or names.get("__name__", "").startswith("importlib")


def _print_error(hook: Any, of_program: BaseException, kind: Any, error: Any, trace: Any) -> None:
    """Print the exception of the program by the program's own hook, without the frames by which it
    was run."""
    if error is of_program:
        while trace is not None and trace.tb_frame.f_globals is not globals():
            trace = trace.tb_next
        while trace is not None and _runs(trace.tb_frame.f_globals):
            trace = trace.tb_next
        error.__traceback__ = sys.last_traceback = trace  # None: it does not compile
    hook(kind, error, trace)


# ---- the patch -----------------------------------------------------------------------------------


def _patch_with_torch(patched: Callable[[], None]) -> None:
    """Call ``patched`` when torch is imported; at once if it is."""
    if _TORCH in sys.modules:
        patched()
    else:
        sys.meta_path.insert(0, _Finder(patched))


class _Finder:
    """Finds torch as the others do, and calls a function when it has been imported."""

    def __init__(self, imported: Callable[[], None]) -> None:
        self._imported = imported
        self._is_asked = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _TORCH or self._is_asked:
            return None
        self._is_asked = True
        try:
            spec: Any = importlib.util.find_spec(name)
        finally:
            self._is_asked = False
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        """Call the function after this loader's work. It stays the object that others find."""

        def exec_module(module: Any) -> None:
            del loader.exec_module
            loader.exec_module(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._imported()

        loader.exec_module = exec_module


def _patch_here() -> None:
    """In a process that the program has started: the patch, and no report."""
    importlib.import_module("fastiter.torch._patch").patch()  # perhaps within `fastiter.torch`


class _Name(str):
    """The name of a process, which patches torch where it is unpickled."""

    def __reduce__(self) -> Any:
        return _named_in_child, (str(self),)


def _named_in_child(name: str) -> str:
    _patch_with_torch(_patch_here)
    spawn.get_preparation_data = _prepared
    return name


_preparation_data = spawn.get_preparation_data


def _prepared(name: str) -> dict[str, Any]:
    """Preparation data of a process that multiprocessing starts, with the patch."""
    data = _preparation_data(name)
    return {**data, "name": _Name(name)}


# ---- the report ----------------------------------------------------------------------------------


class _Report:
    """Reports at exit, in the program's own process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._compares = options.compare
        self._file = options.report and os.path.abspath(options.report)  # it may change folders
        self._pid = os.getpid()
        self._patch: Any = None
        self.status = 0
        atexit.register(self.give)

    def patched(self) -> None:
        self._patch = importlib.import_module("fastiter.torch._patch").Patch({}, self._compares)

    def give(self) -> None:
        if os.getpid() != self._pid:
            return
        rank = os.environ.get("RANK", "0")
        told = f"{self._text()}\n" if rank == "0" else ""
        if self._file is not None and (rank == "0" or "{rank}" in self._file):
            found = {"loaders": []} if self._patch is None else self._patch.as_dict()
            text = json.dumps({**found, "exit_status": self.status}, indent=1, default=str)
            try:
                Path(self._file.replace("{rank}", rank)).write_text(text + "\n")
            except OSError as error:  # the exit status stays the program's
                told += f"fastiter: the report was not written: {error}\n"
        with contextlib.suppress(Exception):  # closed, a broken pipe, or an object of the program's
            # Of None, print() would make standard output.
            print(told, end="", file=sys.stderr or io.StringIO(), flush=True)

    def _text(self) -> str:
        if self._patch is None:
            return "fastiter: 0 loaders, the program has not imported torch"
        return str(self._patch.report())
