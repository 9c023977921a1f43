"""Workers of tests here are forked, also by CPythons whose default is another start: their datasets
hold functions that do not pickle."""

import importlib
import multiprocessing
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=sys.version_info >= (3, 14))
def start_by_fork() -> Iterator[None]:
    former = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(former, force=True)


@pytest.fixture(params=["torch", "fastiter"])
def loader_class(request: pytest.FixtureRequest) -> Any:
    """torch's class first, which shows that the test tells what torch does."""
    module = "torch.utils.data" if request.param == "torch" else "fastiter.torch"
    return importlib.import_module(module).DataLoader
