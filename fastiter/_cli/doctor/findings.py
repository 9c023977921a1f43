"""Findings of the doctor: what they are, and how they are shown."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable
from typing import Literal, NamedTuple

_NAME_WIDTH = 24


class Finding(NamedTuple):
    """One fact about this machine, and what to make of it."""

    section: str
    name: str
    fact: str
    diagnosis: Literal["ok", "note", "problem"] = "ok"
    """ok: as it should be; note: worth knowing; problem: something does not work."""
    help: str = ""
    """What would help, or what it is good for."""


def show(findings: Iterable[Finding]) -> None:
    """Print findings by section, each of them diagnosis, name, fact, and what would help."""
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            print(f"\n{section}")
        head = f"  {finding.diagnosis:<8}{finding.name:<{_NAME_WIDTH}}"
        print(_wrapped(finding.fact, head))
        if finding.help:
            print(_wrapped(finding.help, " " * len(head) + "-> "))


def _wrapped(text: str, head: str) -> str:
    width = max(72, min(120, shutil.get_terminal_size((100, 24)).columns))
    return textwrap.fill(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )


def without_secrets(text: str, is_url: bool = False) -> str:
    """Mask the user's name and password in URLs, and what follows a question mark: what the doctor
    says is shown to others. ``is_url``: all of the text is one, perhaps without its scheme."""
    if is_url:
        text = re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", text, flags=re.DOTALL)
    text = re.sub(r"(\w://)[^/\s]*@", r"\1***@", text)
    return re.sub(r"(\w://[^\s?]*)\?\S*", r"\1?***", text)


def as_bytes(number: float) -> str:
    """A number of bytes for people: ``1.5 GiB``."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        del units[0]
    digits = 0 if number >= 10 or units[0] == "bytes" else 1
    return f"{number:.{digits}f} {units[0]}"
