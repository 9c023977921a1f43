"""Workers of tests here are forked, also by CPythons whose default is another start: their datasets
hold functions that do not pickle."""

import multiprocessing
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=sys.version_info >= (3, 14))
def start_by_fork() -> Iterator[None]:
    former = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(former, force=True)
