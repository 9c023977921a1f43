"""A cluster of two nodes for all tests of this folder, which run one after the other."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from cluster_of_tests import LocalCluster


@pytest.fixture(scope="package")
def cluster():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    found = LocalCluster(2)
    yield found
    found.close()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.xdist_group("cluster"))
            item.add_marker(pytest.mark.timeout(240))
