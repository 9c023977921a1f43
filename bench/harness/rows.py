"""One candidate's figures in one case of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.harness.interpreters import Interpreter


@dataclass
class Row:
    """Measurements of a candidate; `status` is ``ok`` or says why there are no figures."""

    name: str
    title: str
    family: str  # the library, ``limit`` for the machine's limit
    interpreter: Interpreter | None
    status: str = "ok"
    reason: str = ""
    # The figures of each round; ``rate``, items per second, is always among them.
    slices: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # figures taken once

    @property
    def ok(self) -> bool:
        """Whether there are figures, and none is known to be wrong."""
        return self.status == "ok"

    @property
    def rate(self) -> float:
        """Median over the rounds, items per second; only of a row that is ok."""
        return self.median("rate")

    def median(self, key: str) -> float:
        """Median of a figure over the rounds."""
        return median(one[key] for one in self.slices)

    def figure(self, key: str) -> float | None:
        """A figure by name, from the rounds or taken once; None where the row has none."""
        if self.slices and key in self.slices[0]:
            return self.median(key)
        return self.facts.get(key)

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {"name": self.name, "title": self.title, "status": self.status}
        if self.interpreter is not None:
            result |= {
                "python": self.interpreter.python,
                "numpy": self.interpreter.numpy,
                "version": self.interpreter.version,
            }
        if self.reason:
            result["reason"] = self.reason
        if self.ok:
            result |= {"rate": self.rate, "slices": self.slices} | self.facts
        return result
