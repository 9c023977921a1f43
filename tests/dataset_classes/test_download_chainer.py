"""Our cache beside Chainer's: the same values, the same files, whatever is done in which order."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastiter.dataset import download as ours

theirs = pytest.importorskip("chainer.dataset.download", reason="Chainer does not import here")


class Failed(str):
    """The kind of error that an operation raised."""


def operate(library: Any, directory: str, operation: tuple[Any, ...]) -> Any:
    """Does one thing below a directory; gives its result without the directory."""
    kind, *arguments = operation
    try:
        result = getattr(Operations(library, directory), kind)(*arguments)
    except (OSError, ZeroDivisionError, RuntimeError) as error:
        return Failed("OSError" if isinstance(error, OSError) else type(error).__name__)
    return result.replace(directory, "") if isinstance(result, str) else result


class Operations:
    def __init__(self, library: Any, directory: str) -> None:
        self.library = library
        self.directory = directory

    def root(self, name: str | None) -> str:
        if name is not None:
            self.library.set_dataset_root(os.path.join(self.directory, name))
        return self.library.get_dataset_root()

    def folder(self, name: str, create: bool) -> str:
        return self.library.get_dataset_directory(name, create_directory=create)

    def fetch(self, name: str) -> bytes:
        path = self.library.cached_download("file:///dev/shm/../.." + SOURCES[name])
        return path.replace(self.directory, "").encode() + Path(path).read_bytes()

    def load(self, name: str, content: str | None, loads: bool) -> Any:
        def create(path: str) -> str:
            assert os.path.basename(path) == name
            assert not os.path.exists(path)
            if content is not None:
                Path(path).write_text(content)
            return f"made {1 // len(content or 'none')}"

        def load(path: str) -> str:
            return f"loaded {Path(path).read_text()} {1 // loads}"

        path = os.path.join(self.library.get_dataset_root(), name)
        return self.library.cache_or_load_file(path, create, load)


SOURCES: dict[str, str] = {}


@pytest.fixture(autouse=True)
def roots(monkeypatch):
    """Has both forget afterwards what roots they were given."""
    monkeypatch.setattr("fastiter.dataset.download._chosen_root", None)
    monkeypatch.setattr(theirs, "_dataset_root", theirs._dataset_root)


@pytest.fixture(scope="module", autouse=True)
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sources")
    for name in ("first", "second"):
        (directory / name).write_text(f"the {name} file")
        SOURCES[name] = str(directory / name)
    SOURCES["none"] = str(directory / "none")


def tree(directory: str) -> dict[str, str | None]:
    """Contents by names, but for files that only locks are."""
    locks = {"_dl_lock", "_create_lock"}
    return {
        str(path.relative_to(directory)): path.read_text() if path.is_file() else None
        for path in Path(directory).rglob("*")
        if path.name not in locks and path.suffix != ".lock"
    }


names = st.sampled_from(["a", "b", "c.npz"])
operations = st.one_of(
    st.tuples(st.just("root"), st.one_of(st.none(), st.sampled_from(["r", "r/s", "t"]))),
    st.tuples(st.just("folder"), st.sampled_from(["", "a", "d", "d/e", "/../up"]), st.booleans()),
    st.tuples(st.just("fetch"), st.sampled_from(["first", "second", "none"])),
    st.tuples(st.just("load"), names, st.sampled_from(["x", "yz", "", None]), st.booleans()),
)


# The roots are set anew in each example.
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(operations, min_size=1, max_size=8))
def test_any_operations_give_the_same(wanted):
    with tempfile.TemporaryDirectory() as left, tempfile.TemporaryDirectory() as right:
        for library, directory in ((ours, left), (theirs, right)):
            library.set_dataset_root(os.path.join(directory, "begin"))
        for operation in wanted:
            assert operate(ours, left, operation) == operate(theirs, right, operation)
            assert tree(left) == tree(right)


def test_both_find_what_the_other_has_downloaded(tmp_path):
    for library in (ours, theirs):
        library.set_dataset_root(str(tmp_path))
    for first, second, name in ((ours, theirs, "first"), (theirs, ours, "second")):
        url = Path(SOURCES[name]).as_uri()
        path = first.cached_download(url)
        Path(path).write_text("as it was cached")
        assert second.cached_download(url) == path
        assert Path(path).read_text() == "as it was cached"


@pytest.mark.parametrize("value", ["/somewhere", "relative", None])
def test_the_environment_counts_alike(value):
    environment = {**os.environ, "HOME": "/home/user", "CHAINER_DATASET_ROOT": value or ""}
    if value is None:
        del environment["CHAINER_DATASET_ROOT"]
    code = "from {} import dataset; print(dataset.get_dataset_root())"
    ours_found, theirs_found = (
        subprocess.check_output([sys.executable, "-c", code.format(name)], env=environment)
        for name in ("fastiter", "chainer")
    )
    assert ours_found == theirs_found
