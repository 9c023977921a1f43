"""Classes of libraries that only the program imports."""

from __future__ import annotations

import sys
from typing import Any


def loaded(module: str, name: str) -> Any:
    """The class ``module.name``, for `isinstance`. (), of which nothing is an instance, where the
    program has not imported the module, or a thread is in the midst of importing it."""
    return getattr(sys.modules.get(module), name, ())
