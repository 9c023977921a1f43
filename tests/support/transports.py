"""The ways in which programs store states: what arrives is a copy."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import pytest


def by_json(state: Any) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


def by_torch(state: Any) -> Any:
    """By ``torch.save``, and ``torch.load`` with its defaults, which take plain data alone."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def by_pickle(state: Any) -> Any:
    return pickle.loads(pickle.dumps(state))


TRANSPORTS = {"json": by_json, "torch": by_torch, "pickle": by_pickle}
