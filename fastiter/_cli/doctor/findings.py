"""Findings of the doctor, and how they are printed."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import Literal, NamedTuple

Judgement = Literal["ok", "note", "problem"]  # worth knowing; something does not work


class Finding(NamedTuple):
    """One fact about this machine."""

    name: str
    fact: str
    judgement: Judgement = "ok"
    help: str = ""  # what would improve it, or what it is good for

    def __str__(self) -> str:
        head = f"  {self.judgement:<8}{self.name:<24}"
        text = _wrapped(self.fact, head)
        if self.help:
            text += "\n" + _wrapped(self.help, " " * len(head) + "-> ")
        return text


def note_if(is_noteworthy: bool, name: str, fact: str, help: str) -> Finding:
    """A note with ``help`` where ``is_noteworthy``, else an ok without."""
    return Finding(name, fact, "note", help) if is_noteworthy else Finding(name, fact)


def _wrapped(text: str, head: str) -> str:
    return textwrap.fill(
        text,
        max(72, min(120, shutil.get_terminal_size((100, 24)).columns)),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )


def without_secrets(text: str, is_url: bool = False) -> str:
    """Mask user names, passwords and queries in URLs, since users show the output to others.

    ``is_url``: the whole text is a URL, perhaps without its scheme.
    """
    if is_url:
        text = re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", text, flags=re.DOTALL)
    text = re.sub(r"(\w://)[^/\s]*@", r"\1***@", text)
    return re.sub(r"(\w://[^\s?]*)\?\S*", r"\1?***", text)
