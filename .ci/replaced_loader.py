"""A pytest plugin of `.ci/clients`: torch's `DataLoader` is ours before anything else imports it.

Loaded by ``-p replaced_loader``, and by the processes that a test starts by spawn. LOADER says
which class, ``torch`` or ``fastiter``; ALSO names another one that fastiter's takes the place of,
as MODULE:CLASS. OUTCOMES is a file for what was seen: the outcome of each test, and the number of
loaders made in this process, as JSON.
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing.spawn
import os
from typing import Any

import pytest
import torch.utils.data
import torch.utils.data.dataloader

if os.environ["LOADER"] == "fastiter":
    import fastiter.torch

    module, _, name = os.environ.get("ALSO", "").partition(":")
    if module:
        setattr(importlib.import_module(module), name, fastiter.torch.DataLoader)
    torch.utils.data.DataLoader = fastiter.torch.DataLoader
    torch.utils.data.dataloader.DataLoader = fastiter.torch.DataLoader

_get_command_line = multiprocessing.spawn.get_command_line


def _command_line(**arguments: Any) -> list[str]:
    """Tell a process that starts by spawn to import this module first."""
    *options, program, mark = _get_command_line(**arguments)
    return [*options, f"import replaced_loader; {program}", mark]


multiprocessing.spawn.get_command_line = _command_line

_made = 0
_outcomes: dict[str, dict[str, str]] = {}
_construct = torch.utils.data.DataLoader.__init__


@functools.wraps(_construct)  # for inspect.signature, and for errors that name the function
def _counted(self: Any, *arguments: Any, **named: Any) -> None:
    global _made
    _made += 1
    _construct(self, *arguments, **named)


torch.utils.data.DataLoader.__init__ = _counted


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = _outcomes.setdefault(report.nodeid, {"outcome": "passed", "error": ""})
    if report.outcome != "passed" and test["outcome"] != "failed":
        test["outcome"] = report.outcome
        crash = getattr(report.longrepr, "reprcrash", None)
        test["error"] = str(report.longrepr if crash is None else crash.message)


def pytest_sessionfinish() -> None:
    with open(os.environ["OUTCOMES"], "w") as file:
        json.dump({"loaders": _made, "tests": _outcomes}, file)
