"""Classes of libraries that only the program imports."""

from __future__ import annotations

import sys
from typing import Any


def loaded(module: str, name: str) -> Any:
    """The class ``module.name`` for `isinstance`; () where the program has not imported it, or
    another thread is about to."""
    return getattr(sys.modules.get(module), name, ())
