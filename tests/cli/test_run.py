"""``python -m fastiter run``: programs as they are, with fastiter's workers."""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import multiprocessing, os, sys; multiprocessing.set_start_method("fork", force=True)
early = "torch" in sys.modules
os.environ["SET_BEFORE_TORCH"] = "1"
import torch
from torch.utils.data import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return index

def rows(loader):
    return [batch.tolist() for batch in loader]

def workers_of(loader):
    names = [kind.__module__ for kind in type(iter(loader)).__mro__]
    return "fastiter" if any(name.startswith("fastiter") for name in names) else "torch"
"""


@pytest.fixture
def program(tmp_path: Path) -> Any:
    """``program(lines, *arguments)`` runs a script of these lines under ``run``."""

    def run(lines: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(PROGRAM + textwrap.dedent(lines))
        return finished(
            tmp_path, *RUN, *options.pop("before", ()), "script.py", *arguments, **options
        )

    return run


RUN = (sys.executable, "-m", "fastiter", "run")


def finished(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )


FACTS = """
import sys
print(__name__, __file__, __package__, __spec__ and __spec__.name, __builtins__.__name__)
print(sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals())
print({"numpy", "torch"}.intersection(sys.modules))  # which read the environment then
print(sorted(set(globals()) - {"sys"}))
"""


@pytest.mark.parametrize("name", ["package/tool.py", "./link/../tool.py", "-m package.tool"])
def test_the_program_sees_what_python_gives(tmp_path, name):
    (tmp_path / "package/inner").mkdir(parents=True)
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/tool.py").write_text(FACTS)
    (tmp_path / "link").symlink_to("package/inner")
    name = name.split()
    arguments = (*name, "--help", "-m", "--compare", "x y")
    plain = finished(tmp_path, sys.executable, *arguments)
    ours = finished(tmp_path, *RUN, *arguments)
    assert plain.stdout == ours.stdout
    assert (plain.returncode, ours.returncode) == (0, 0)
    assert ours.stderr == "fastiter: 0 loaders, the program has not imported torch\n"


def test_a_folder_and_an_archive_with_a_main_module(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/__main__.py").write_text(FACTS + "import helper\nhelper.f()\n")
    (tmp_path / "folder/helper.py").write_text("def f():\n    print('helps')\n    1 / 0\n")
    shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "folder")
    for name in ("folder", "./folder/", "archive.zip"):
        plain = finished(tmp_path, sys.executable, name, "--help")
        ours = finished(tmp_path, *RUN, name, "--help")
        assert "helps" in plain.stdout
        assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode) == (ANY, 1)
        assert without_runpy(plain.stderr) == ours.stderr.partition("fastiter: ")[0]


def test_a_compiled_file(tmp_path):
    (tmp_path / "tool.py").write_text(FACTS + "print(type(__loader__))\nf = lambda: 1 / 0\nf()\n")
    py_compile.compile(str(tmp_path / "tool.py"), str(tmp_path / "tool.bin"), "tool.py")
    plain = finished(tmp_path, sys.executable, "tool.bin", "--help")
    ours = finished(tmp_path, *RUN, "tool.bin", "--help")
    assert "SourcelessFileLoader" in plain.stdout
    assert ours.stdout == plain.stdout
    assert (ours.returncode, ours.stderr.partition("fastiter: ")[0]) == (1, plain.stderr)


@pytest.mark.parametrize(
    ("package", "module", "status"),
    [
        ("import missing_dependency", "", 1),
        ("import sys\nprint(sys.argv)\n1 / 0", "", 1),
        ("raise SystemExit(7)", "", 7),
        ("import package.tool", None, 1),
        ("import sys\nprint(sys.argv)", "import sys\nprint(sys.argv)\nimport missing", 1),
        ("", None, 1),
    ],
    ids=["its dependency", "an exception", "an exit", "itself", "the module's", "no module"],
)
def test_packages_are_part_of_the_program(tmp_path, package, module, status):
    """Their errors end it as those of the module do; a module that there is not is none."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text(package)
    if module is not None:
        (tmp_path / "package/tool.py").write_text(module)
    plain = finished(tmp_path, sys.executable, "-m", "package.tool", "x")
    ours = finished(tmp_path, *RUN, "--report", "r.json", "-m", "package.tool", "x")
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode) == (ANY, status)
    text, mark, _ = ours.stderr.partition("fastiter: 0 loaders")
    is_there = bool(package) or module is not None
    assert bool(mark) == (tmp_path / "r.json").exists() == is_there
    if is_there:
        assert text == without_runpy(plain.stderr)
        assert json.loads((tmp_path / "r.json").read_text())["exit_status"] == status


def without_runpy(text: str) -> str:
    """A traceback without the frames by which Python has run a module."""
    return re.sub(r'  File "[^"]*runpy(\.py|>)", .*\n(    .*\n)*', "", text)


def test_loaders_have_fastiters_workers(program):
    found = program("""
        assert not early
        print(workers_of(DataLoader(Numbers(), 8, num_workers=1)), rows(DataLoader(Numbers(), 12)))
    """)
    assert found.stdout == f"fastiter {[[*range(12)], [*range(12, 24)]]}\n"
    first, *places = found.stderr.splitlines()
    assert first == "fastiter: 2 loaders, 0 left to torch"
    assert "script.py:22  DataLoader, 2 made: 2 epochs" in places[0]


ENDS = {
    "an exception": ("def f():\n    1 / 0\nf()\n", 1),
    "a status": ("sys.exit(3)\n", 3),
    "a text": ("sys.exit('a text')\n", 1),
    "an interrupt": ("raise KeyboardInterrupt\n", -signal.SIGINT),
    "a signal": ("os.kill(os.getpid(), 15)\n", -signal.SIGTERM),
    "its own hook": ("sys.excepthook = lambda *e: print('mine', e[1])\nraise KeyError(1)\n", 1),
    "a cause": ("try:\n    {}[1]\nexcept KeyError as e:\n    raise ValueError('v') from e\n", 1),
    "what does not compile": ("def\n", 1),
    "no standard error": ("sys.stderr = None\nsys.exit(5)\n", 5),
    "an abort": ("os.abort()\n", -signal.SIGABRT),
    "a last traceback": (
        "import atexit\natexit.register(lambda: print(sys.last_traceback.tb_lineno))\n1 / 0\n",
        1,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_the_program_ends(program, tmp_path, end):
    lines, status = ENDS[end]
    ours = program(lines)
    plain = finished(tmp_path, sys.executable, "script.py")
    assert ours.returncode == plain.returncode == status
    assert ours.stdout == plain.stdout
    text, mark, _ = ours.stderr.partition("fastiter: 0 loaders")
    assert text == plain.stderr
    assert bool(mark) == (end not in ("a signal", "an abort", "no standard error"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_the_program_have_the_class_and_give_no_report(program, method):
    found = program(f"""
        import multiprocessing

        def tell(queue):
            queue.put((workers_of(DataLoader(Numbers())), __name__))

        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            queue = context.Queue()
            process = context.Process(target=tell, args=(queue,), name="a process")
            process.start()
            print(*queue.get())
            process.join()
            loader = DataLoader(Numbers(), 12, num_workers=1, multiprocessing_context={method!r})
            print(rows(loader), process.name, process.exitcode)
    """)
    main = "__main__" if method == "fork" else "__mp_main__"
    assert found.stdout.splitlines() == [
        f"fastiter {main}",
        f"{[[*range(12)], [*range(12, 24)]]} a process 0",
    ]
    assert found.stderr.count("fastiter: ") == 1


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_import_torch_by_fastiter(tmp_path, method):
    """The program imports torch in a part that workers do not run."""
    (tmp_path / "script.py").write_text(f"""
if __name__ == "__main__":
    from torch.utils.data import DataLoader
    loader = DataLoader(range(4), 2, num_workers=1, multiprocessing_context={method!r})
    print([batch.tolist() for batch in loader])
""")
    found = finished(tmp_path, *RUN, "script.py")
    assert found.stdout == "[[0, 1], [2, 3]]\n", found.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_send_objects_of_the_programs_classes(program, method):
    found = program(f"""
        import multiprocessing

        class Point:
            pass

        def make(queue):
            queue.put(Point())

        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            queue = context.Queue()
            process = context.Process(target=make, args=(queue,))
            process.start()
            print(type(queue.get()) is Point)
            process.join()
    """)
    assert found.stdout == "True\n", found.stderr


def test_torch_is_found_as_by_python(tmp_path):
    """By a program that only looks for it; and it is patched when it is imported then."""
    (tmp_path / "script.py").write_text("""
import importlib.util
import sys
spec = importlib.util.find_spec("torch")
print(type(spec.loader), spec.loader == importlib.util.find_spec("json").loader, spec.origin)
import torch
found = torch.__spec__.loader
print(type(found), found is torch.__loader__, vars(found), "torch" in map(str, sys.meta_path))
print(torch.utils.data.DataLoader.__mro__[1].__module__, file=sys.stderr)
""")
    plain = finished(tmp_path, sys.executable, "script.py")
    ours = finished(tmp_path, *RUN, "script.py")
    assert ours.stdout == plain.stdout != ""
    assert ours.stderr.splitlines()[0] == "fastiter.torch._loader"


def test_other_programs_have_torchs_class(program):
    found = program("""
        import subprocess
        code = "from torch.utils.data import DataLoader; print(DataLoader.__module__)"
        subprocess.run([sys.executable, "-c", code], check=True)
    """)
    assert found.stdout == "torch.utils.data.dataloader\n"


def test_a_report_that_cannot_be_written_is_told(program):
    found = program("sys.exit(4)", before=("--report", "missing/r.json"))
    assert found.returncode == 4 and "Traceback" not in found.stderr
    assert "fastiter: the report was not written: [Errno 2]" in found.stderr


@pytest.mark.parametrize(
    "lines",
    [
        "sys.exit(True)",  # as unittest.main() does
        "sys.exit(-1)",
        "class Stop(KeyboardInterrupt): pass\nraise Stop",
        "sys.stderr.close(); sys.exit(3)",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 2); sys.exit(3)",
        "a, b = os.pipe(); os.close(a); os.dup2(b, 2); sys.exit(3)",
        "sys.stderr = object(); sys.exit(3)",
    ],
)
def test_a_report_file_is_there_however_a_program_ends(tmp_path, lines):
    (tmp_path / "script.py").write_text(f"import os, sys\n{lines}\n")
    plain = finished(tmp_path, sys.executable, "script.py")
    found = finished(tmp_path, *RUN, "--report", "r.json", "script.py")
    assert (found.returncode, found.stdout) == (plain.returncode, "")
    told = json.loads((tmp_path / "r.json").read_text())["exit_status"]
    assert type(told) is int
    assert told == found.returncode or "object()" in lines  # Python's exit cannot flush this one


def test_the_figures_as_a_file(program, tmp_path):
    found = program(
        """
        class Own(DataLoader):
            def _get_iterator(self):
                return super()._get_iterator()
        for _ in range(2):
            rows(loaders[0]) if (loaders := [DataLoader(Numbers(), 6, num_workers=1)]) else None
        rows(Own(Numbers()))
        sys.exit(4)
        """,
        *("--report", "mine.json"),
        before=("--report", "{rank}.json"),
        RANK="1",
    )
    assert (found.returncode, found.stderr) == (4, "")
    assert [path.name for path in tmp_path.glob("*.json")] == ["1.json"]
    report = json.loads((tmp_path / "1.json").read_text())
    assert report["exit_status"] == 4
    first, second, own = report["loaders"]
    for each in (first, second):
        assert 0 < each.pop("wait_seconds") <= each.pop("seconds")
        where = {"file": str(tmp_path / "script.py"), "line": first["line"]}
        settings = {"class": "DataLoader", "batch_size": 6, "num_workers": 1}
        counts = {"epochs": 1, "batches": 4}
        assert each == {**where, **settings, **counts, "left_to_torch": None, "compare": None}
    assert (own["class"], own["epochs"], own["batches"]) == ("Own", 1, 24)
    assert own["left_to_torch"] == "Own overrides _get_iterator"


@pytest.mark.parametrize("persistent", [False, True])
def test_compared_classes_take_turns(program, tmp_path, persistent):
    lines = f"""
        torch.manual_seed(1)
        loader = DataLoader(
            Numbers(), 5, shuffle=True, num_workers=2, persistent_workers={persistent}
        )
        for _ in range(4):
            print(workers_of(DataLoader(Numbers())), rows(loader))
        rows(DataLoader(Numbers()))
    """
    found = program(lines, before=("--compare", "--report", "r.json"))
    plain = finished(tmp_path, sys.executable, "script.py")
    if not persistent:
        assert found.stdout == plain.stdout.replace("torch", "fastiter")
    loader, *_, single = json.loads((tmp_path / "r.json").read_text())["loaders"]
    both = loader["compare"]
    for name in ("fastiter", "torch"):
        assert (both[name]["epochs"], both[name]["batches"]) == (2, 10)
        assert 0 < both[name]["wait_seconds"] <= both[name]["seconds"]
    rates = [both[name]["batches"] / both[name]["seconds"] for name in ("fastiter", "torch")]
    assert both["ratio"] == pytest.approx(rates[0] / rates[1])
    assert (loader["epochs"], loader["batches"]) == (4, 20)
    assert single["compare"] is None
    assert "batches/s, torch " in found.stderr and "of too few loops" not in found.stderr
    assert found.stderr.count("    not compared: ") == 1, "of the loader with a single loop"


def test_wrong_commands(tmp_path):
    """The exit status is Python's: 2 for a wrong command line and a script that is not there."""
    modules = [("-m", name) for name in ("no_such_module", "no.such", "json.such", ".x", "..x.y")]
    wrong = [(), ("no.py",), ("--no", "x.py"), ("-m",), ("-mjson.tool", "x")]
    wrong.append(("--compar", "-m", "this"))  # an abbreviation may be another option some day
    for command in (*wrong, *modules, (".",)):
        found = finished(tmp_path, *RUN, *command)
        status = 2 if command in wrong else 1
        assert (found.returncode, found.stdout) == (status, "")
        assert found.stderr
        assert "Traceback" not in found.stderr


def test_a_variable_leaves_it_to_torch(program):
    found = program("print(workers_of(DataLoader(Numbers())))", FASTITER_RUN="0")
    assert found.stdout == "torch\n"
