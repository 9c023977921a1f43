"""The documentation: its programs run, its links lead somewhere, and its names are in the tree."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import inspect
import itertools
import keyword
import os
import pydoc
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import forked_programs
import programs
import pytest
import typed

import fastiter

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
READMES = [page for top in ("fastiter", "csrc") for page in (ROOT / top).rglob("README.md")]
READMES += [ROOT / "bench" / "README.md", ROOT / "examples" / "README.md"]
TUTORIAL = ROOT / "docs" / "guide" / "tutorial.md"  # its programs build on each other
# Packages that a program may import besides ours, where they are.
OTHERS = (
    "PIL",
    "array_record",
    "lance",
    "streaming",
    "webdataset",
    "zarr",
    "chainer",
    "cv2",
    "datasets",
    "h5py",
    "jax",
    "pyarrow",
    "torch",
)

FENCE = re.compile(r"^```(\w*|{[\w-]+}[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NODE = re.compile(r"`((?:\w+/)*\w+\.(py|c))::(\w+)`")  # a test, named as pytest does
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Program(NamedTuple):
    name: str  # page and line
    source: str


def programs_of_pages() -> list[Program]:
    found = []
    for page in PAGES:
        if page == TUTORIAL:
            continue
        text = page.read_text()
        for fence in FENCE.finditer(text):
            if fence[1] == "python":
                line = text.count("\n", 0, fence.start()) + 2
                found.append(Program(f"{page.relative_to(ROOT)}:{line}", fence[2]))
    return found


PROGRAMS = programs_of_pages()


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


# Of other packages' warnings ours is not the place to hear.
WARNINGS = ("-W", "ignore", "-W", "error::ResourceWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[forked_programs.Server]:
    with forked_programs.server(*WARNINGS) as made:
        yield made


def run(source: str, tmp_path: Path, server: forked_programs.Server | None = None) -> str:
    """Run a program in a fork of the server, or in an interpreter of its own; return its output."""
    path = tmp_path / "program.py"
    path.write_text(source)
    # What a page makes with tempfile goes with this. tmp_path is too long for the names of sockets.
    with tempfile.TemporaryDirectory() as scratch:
        env = programs.environment(TMPDIR=scratch)
        result: Any
        if server is None:
            result = programs.run(*WARNINGS, path, cwd=tmp_path, env=env)
        else:
            result = server.run(path, tmp_path, env)
    assert (result.returncode, result.stderr) == (0, "")
    return str(result.stdout)


def skip_without_packages(program: Program) -> None:
    for package in OTHERS:
        # fastiter.torch needs torch; fastiter.datasets does not need datasets.
        name = rf"(?:fastiter\.)?{package}" if package == "torch" else package
        is_imported = re.search(rf"^(import|from) {name}\b", program.source, re.MULTILINE)
        if is_imported and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def test_every_page_of_programs_is_found() -> None:
    pages = {program.name.partition(":")[0] for program in PROGRAMS}
    assert {
        "docs/guide/first_programs.md",
        "docs/guide/migrating.md",
        "docs/guide/snapshots.md",
        "docs/internals/lifetimes.md",
    } <= pages


# The default from CPython 3.14 on, under which the program is imported again: it needs its guard.
IMPORTED = "import multiprocessing\n\nmultiprocessing.set_start_method('forkserver', force=True)\n"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_runs(program: Program, tmp_path: Path, server: forked_programs.Server) -> None:
    skip_without_packages(program)
    printed = run(program.source, tmp_path, server)
    # A program that prints the statistics shows the speed.
    assert "print(batches.stats())" not in program.source or "examples/s" in printed


@pytest.mark.stress
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_runs_where_workers_import_it(program: Program, tmp_path: Path) -> None:
    skip_without_packages(program)
    if "MultiprocessIterator(" in program.source and "chainer" not in program.source:
        run(IMPORTED + program.source, tmp_path)


def test_the_tutorial_typed_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    printed = typed.run(TUTORIAL, tmp_path, programs.environment(PATH=path), install=False)
    whole, resumed = [text.splitlines() for text in printed if "weights: " in text]
    assert whole[-1] == resumed[-1]


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"\w+:", link):
            continue  # elsewhere
        name, _, fragment = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        there = target.exists() and target.is_relative_to(ROOT)
        if not there or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_figure_of_the_segment_shows_the_present_layout() -> None:
    script = ROOT / "docs" / "figures" / "segment.py"
    drawn = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert drawn.stdout == (ROOT / "docs" / "_static" / "segment.svg").read_text(), (
        "run: python docs/figures/segment.py > docs/_static/segment.svg"
    )


SCRIPTS = [
    path
    for path in sorted((ROOT / ".ci").iterdir())
    if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash")
]


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.name for path in SCRIPTS])
def test_a_script_prints_what_it_does(script: Path) -> None:
    printed = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    head = script.read_text().split("\nset -")[0].split("\n")[1:]
    assert printed.split("\n")[:-1] == [line.removeprefix("#").removeprefix(" ") for line in head]


def test_what_the_nightly_run_leaves_out_is_there() -> None:
    """pytest takes in silence a ``--deselect`` that names no test (any more)."""
    names = re.findall(r'--deselect=(?:"(.+)"|(\S+))', (ROOT / ".ci" / "nightly").read_text())
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-m", ""]
    done = subprocess.run(
        [*collect, *map("".join, names)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr, len(names) > 0) == (0, "", True)


def test_the_readme_is_one_screen() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 700
    rows = [line for line in text.split("\n") if line.startswith("|")]
    assert len(rows) <= 2 + 6, "one table, of at most six rows below its head"


def measured(machine: str, job: str, case: str, name: str) -> float:
    """A row of a table in ``bench/results``: examples per second, or seconds of a start."""
    text = (ROOT / "bench" / "results" / f"{machine}{job}.txt").read_text()
    block = next(part for part in text.split("\n\n") if part.startswith(case))
    row = next(line for line in block.split("\n") if line.startswith(f"{name} "))
    times = [float(n) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit] for n, unit in TIME.findall(row)]
    if not times:
        return float(row.split()[1].replace(",", ""))
    return times[0] if job.endswith("startup") else 1 / times[2]  # a call; per image


TIME = re.compile(r"([\d.]+) (s|ms|us)\b")
LOADER, TORCH = "fastiter.mp-torch-loader", ("torch.mp", "torch.mp-files")
README_ROWS = [  # job on the AMD and the Xeon, case, ours, torch's
    ("images", "images", "images: 500x375, uint8\n", "fastiter", ("torch.pillow",)),
    *[("torch_pipelines", "pipelines", f"{w}:", LOADER, TORCH) for w in ("W3", "W1", "W2", "W6")],
    ("torch_startup", "startup", "startup:", "fastiter.torch-spawn", ("torch.spawn",)),
]


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    table = re.findall(
        r"^\| (?:decoding|in memory|spawn): .*", (ROOT / "README.md").read_text(), re.M
    )
    for line, (amd, xeon, case, ours, theirs) in zip(table, README_ROWS, strict=True):
        stated = [float(re.sub(r"[, sx]", "", cell)) for cell in line.split("|")[2:6]]
        pairs = [
            (measured(machine, job, case, ours), [measured(machine, job, case, n) for n in theirs])
            for machine, job in (("", amd), ("xeon_", xeon))
        ]
        seconds = case.startswith("startup")
        best = [(a, min(b) if seconds else max(b)) for a, b in pairs]
        gains = [b / a if seconds else a / b for a, b in best]
        expected = [float(f"{rate:.3g}") for rate in best[0]]
        expected += [float(f"{gain:.2g}") for gain in gains]
        assert stated == expected, line


def test_pages_tell_the_number_of_faults_that_are_listed() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs/reference/reliability.md").read_text(), re.M)
    assert [int(row) for row in rows] == [*range(1, len(rows) + 1)]
    told = [re.findall(r"(\d+) faults", page.read_text()) for page in PAGES]
    assert {int(number) for numbers in told for number in numbers} == {len(rows)}


# ---- names in back-ticks

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w*")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
FILE = re.compile(r"(?<![\w:/.~<-])(?:[\w.-]+/)+(?:[\w.*-]{2,})?")
CLASS = re.compile(r"^(?:cdef )?class (\w+)(?:\((.*?)\))?:", re.MULTILINE | re.DOTALL)
# Former names may have stayed in these.
COMMENT = re.compile(r"(?<!\S)#[^\n]*")
DOCSTRING = re.compile(r'^ *r?"""(?:[^"\\]|\\.|"(?!""))*"""', re.MULTILINE)
C_COMMENT = re.compile(r"/\*(?:[^*]|\*(?!/))*\*/")

#: Names that pages have of others, by who has them. Those of modules are looked up, where these are
#: installed: `urllib.error.URLError`.
FOREIGN = {
    "systems": "MADV_FREE mremap shmem_enabled vm max_map_count overcommit_memory",
    "variables of the environment": "SSL_CERT_DIR HDF5_USE_FILE_LOCKING PYTHON_GIL"
    " CUPY_CUDA_PER_THREAD_DEFAULT_STREAM",
    "C libraries": "omp_set_num_threads cudaEventQuery rdcc_nbytes __dlpack_c_exchange_api__",
    "loaders": "get_batch MultiNodeWeightedSampler sample_from_datasets stratified IterDataset"
    " random_map train_size Audio text_file np_array recordio cloud_reader get_cifar10",
    "torch": "_MultiProcessingDataLoaderIter _next_data _next_index pt_data_worker set_seed",
    "trainers": "TorchTrainer flash_attn_varlen_func mlm use_distributed_sampler"
    " limit_train_batches overfit_batches"
    " DataCollatorForLanguageModeling DataCollatorWithFlattening skip_first_batches",
    "HTTP": "Range",
    "programs that a page imagines": "NAME_valid ranks_here state_0 state_1 n_classes make_loaders"
    " set_random_seed tokens_lengths",
}
ABSENT = {*OTHERS, "PIL", "huggingface_hub", "paddle"}  # what may not be installed


class Tree(NamedTuple):
    """Names of the sources."""

    listing: str  # paths, by line
    words: set[str]
    packages: dict[str, set[str]]  # words by package of fastiter
    classes: dict[str, set[str]]  # words that a class of fastiter may have, and its bases

    def has(self, owner: str, name: str) -> bool:
        """Whether the package of a class, or of one of its bases, uses a name."""
        homes = self.classes[owner]
        own = any(name in self.packages.get(home, ()) for home in homes)
        return own or any(self.has(base, name) for base in homes & self.classes.keys() - {owner})


@functools.cache
def tree() -> Tree:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    found = Tree(listing, {*dir(builtins), *keyword.kwlist}, {}, defaultdict(set))
    found.words.update(" ".join(FOREIGN.values()).split())
    for name in listing.splitlines():
        path = ROOT / name
        found.words.update(WORD.findall(name))
        is_text = path.suffix in (".md", ".rst", ".txt", ".json", ".png", ".svg", ".ipynb")
        if is_text or name.startswith("docs/") or not path.is_file():
            continue
        comment = C_COMMENT if path.suffix in (".c", ".h", ".pml") else COMMENT
        code = comment.sub("", path.read_text(errors="replace"))
        if path == Path(__file__):
            code = " ".join(re.findall(r"^def test_\w+", code, re.MULTILINE))
        if name.startswith("fastiter/"):
            code = DOCSTRING.sub("", code)
        words = set(WORD.findall(code))
        found.words.update(words)
        if name.startswith("fastiter/"):
            package = str(path.parent)
            found.packages.setdefault(package, set()).update(words)
            for owner, bases in CLASS.findall(code):
                found.classes[owner] |= {package, *WORD.findall(bases)}
    return found


def is_of_a_module(dotted: str) -> bool:
    """Whether another library has this object, as far as that can be seen here."""
    head, _, rest = dotted.partition(".")
    head = {"np": "numpy"}.get(head, head)
    if importlib.util.find_spec(head) is None:
        return head in ABSENT
    return pydoc.locate(f"{head}.{rest}" if rest else head) is not None


def unknown_names(text: str) -> Iterator[str]:
    """Of what stands in back-ticks on a page, that which is nowhere in the tree."""
    known = tree()
    programs = set(WORD.findall(" ".join(fence[2] for fence in FENCE.finditer(text))))
    for match in SPAN.finditer(FENCE.sub("", text)):
        span = match[1]
        is_name = re.fullmatch(r"[\w.]+(\(.*\))?", span) is not None
        for dotted in DOTTED.findall(re.sub(r"\w+\*", "", span)):
            words = dotted.split(".")
            for word in set(words) - known.words - programs:
                is_code = is_name or "_" in word or re.search("[a-z][A-Z]", word)
                if is_code and not is_of_a_module(dotted):
                    yield f"{word} in `{span}`"
            for owner, name in itertools.pairwise(words):
                if owner in known.classes and not known.has(owner, name):
                    yield f"{owner} has no {name}: `{span}`"
        for file in FILE.findall(span):
            pattern = "(?:^|/)" + re.escape(file).replace(r"\*", "[^/\n]*")
            is_ours = re.search(
                f"^(?:(?:fastiter|csrc|docs)/)?{re.escape(file.split('/')[0])}/",
                known.listing,
                re.M,
            )
            if is_ours and not re.search(pattern, known.listing, re.MULTILINE):
                yield f"{file} in `{span}`"


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_back_ticks_are_in_the_tree(page: Path) -> None:
    assert list(unknown_names(page.read_text())) == []


def test_a_name_that_is_not_in_the_tree_is_found() -> None:
    wrong = (
        "`Pool.look_at_starts` `Plan.lease`, `fi_parent_repair(p)`: `np.no_such` `_ring/merge.py`"
    )
    assert [name.partition(" ")[0] for name in unknown_names(wrong)] == [
        *(
            "look_at_starts",
            "Pool",
            "Plan",
            "fi_parent_repair",
            "no_such",
            "_ring/merge.py",
        )
    ]
    right = "`Pool.wait` `Loop`, `fi_parent_take(p)`: `np.nan` `_ring/arena` `.ci/run` `xeon_*.txt`"
    assert list(unknown_names(f"{right}\n```python\nmine = 1\n```\n`mine`")) == []


MODULES = [
    "iterators",
    "dataset",
    "dataset.tabular",
    "datasets",
    "reader",
    "random",
    "kernels",
    "images",
    "interop",
]


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.rst"))
    current, named = "", set()
    for directive, argument in re.findall(r"^\.\. (\w+):: ([\w.]+)$", pages, re.MULTILINE):
        if directive == "currentmodule":
            current = argument
        elif directive in ("autoclass", "autofunction"):
            name = argument if argument.startswith("fastiter.") else f"{current}.{argument}"
            named.add(name)
        elif directive == "automodule":  # with its members
            named |= {f"{argument}.{name}" for name in importlib.import_module(argument).__all__}
    for module in MODULES:
        public = importlib.import_module(f"fastiter.{module}").__all__
        assert {f"fastiter.{module}.{name}" for name in public} - named == set()
    # The package has the same objects under shorter names.
    known = {name.rpartition(".")[2] for name in named}
    assert set(fastiter.__all__) - known == set()


def test_the_reference_has_the_arguments_of_the_torch_loader() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    loader = importlib.import_module("fastiter.torch").DataLoader
    text = (ROOT / "docs" / "reference" / "torch.rst").read_text()
    listed = re.search(r"autoclass:: DataLoader\((.*)\)\n", text)
    assert listed is not None
    signature = inspect.signature(loader)
    wanted = [
        name if p.default is p.empty else f"{name}={p.default!r}"
        for name, p in signature.parameters.items()
    ]
    wanted.insert(wanted.index("prefetch_factor=None"), "*")
    assert listed[1].split(", ") == wanted


def test_every_page_is_in_a_table_of_contents() -> None:
    docs = ROOT / "docs"
    named = {"index"}
    for page in docs.rglob("*.md"):
        for tree in re.findall(r"^```{toctree}\n(.*?)^```$", page.read_text(), re.M | re.DOTALL):
            for entry in re.findall(r"^([\w/*]+)$", tree, re.MULTILINE):
                found = page.parent.glob(f"{entry}.*")
                named |= {str(path.relative_to(docs).with_suffix("")) for path in found}
    pages = {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")}
    assert pages - named == {"reference/command"}  # reference/index.rst lists it


def proofs() -> list[tuple[str, str]]:
    """The tests that pages name as proofs: file in this directory, and function."""
    names = ("reliability", "fidelity", "promises")
    pages = (ROOT / "docs" / "reference" / f"{name}.md" for name in names)
    return [(node[1], node[3]) for page in pages for node in NODE.finditer(page.read_text())]


@pytest.mark.parametrize("file", sorted({file for file, _ in proofs()}))
def test_proofs_exist(file: str) -> None:
    named = {name for other, name in proofs() if other == file}
    definition = r"^def (test_\w+)\(" if file.endswith(".py") else r"^static void (test_\w+)\("
    defined = re.findall(definition, (ROOT / "tests" / file).read_text(), re.MULTILINE)
    assert named - set(defined) == set()


def test_every_fault_has_its_row_and_a_proof() -> None:
    text = (ROOT / "docs" / "reference" / "reliability.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", text, re.MULTILINE)
    assert [number for number, _ in rows] == [str(number) for number in range(1, 64)]
    assert [number for number, tests in rows if not NODE.search(tests)] == []


def test_every_promise_names_a_test_and_guides_come_in_their_order() -> None:
    text = (ROOT / "docs" / "reference" / "promises.md").read_text()
    rows = [row for row in re.findall(r"^\| (.*) \|$", text, re.M) if row != "promise | test"]
    assert [row for row in rows if not NODE.search(row.rpartition(" | ")[2])] == []
    promises = [row.rpartition(" | ")[0] for row in rows]
    assert len(set(promises)) == len(promises)
    guides = "".join((ROOT / "docs" / name).read_text() for name in ("index.md", "guide/howto.md"))
    trees = re.findall(r"^```{toctree}\n(.*?)^```$", guides, re.MULTILINE | re.DOTALL)
    named = re.findall(r"^(?:guide/)?(\w+)$", "".join(trees), re.MULTILINE)
    order = [name for name in named if (ROOT / "docs" / "guide" / f"{name}.md").exists()]
    pages = re.findall(r"^## \[.*\]\(\.\./guide/(\w+)\.md\)$", text, re.MULTILINE)
    assert pages == [name for name in order if name in pages]
    assert set(re.findall(r"\.\./guide/(\w+)\.md", text)) == set(order) - {"howto"}
