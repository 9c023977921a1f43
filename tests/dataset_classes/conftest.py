"""Fixtures of the tests of several datasets."""

from __future__ import annotations

import pytest

from fastiter import datasets

try:
    import chainer.datasets as chainer_datasets
except ImportError:
    chainer_datasets = None

LIBRARIES = [datasets] if chainer_datasets is None else [datasets, chainer_datasets]


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.__name__.partition(".")[0])
def any_library(request):
    """Ours, and Chainer's where it imports: for what both do."""
    return request.param


@pytest.fixture
def torch():
    """Imported before a test is watched, as its import may start a process."""
    return pytest.importorskip("torch")
