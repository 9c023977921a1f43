"""Types a page of the documentation as its reader would.

Programs go into files, commands into a shell: a page is one script for bash. Its blocks mean:

``<!-- file: NAME -->`` before a block of Python
    The block is the content of that file.
A block of ``sh``
    Commands; one shell runs them all, so that a ``cd`` stays. With ``<!-- install -->`` before it
    the block may be left out, where fastiter is installed already.
A block of ``text``
    What the commands before it print; ``...`` stands for anything within the line.

``python tests/support/typed.py PAGE DIRECTORY`` does it in that directory, with the blocks that
install.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MARKER = r"(?:^<!-- (?P<marker>[^\n]*) -->\n(?:\n[^\n`]*`[^\n]*\n\n)?)?"  # and a line that tells it
BLOCK = re.compile(
    MARKER + r"^```(?P<language>\w+)\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Command(NamedTuple):
    """A command for the shell, and the pattern of its output, if the page has it."""

    source: str
    output: re.Pattern[str] | None


def pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(re.escape("..."), ".*"))


def commands(page: str, *, install: bool) -> list[Command]:
    """Give the commands of a page in order; files are commands that write them."""
    found: list[Command] = []
    for block in BLOCK.finditer(page):
        marker, content = block["marker"] or "", block["content"]
        if block["language"] == "sh":
            if install or marker != "install":
                found.append(Command(content, None))
        elif block["language"] == "text":
            found[-1] = found[-1]._replace(output=pattern(content))
        elif marker.startswith("file: "):
            name = marker.removeprefix("file: ")
            found.append(Command(f"cat > {name} <<'END OF FILE'\n{content}END OF FILE\n", None))
        else:
            raise ValueError(f"nothing says what becomes of this block:\n{content}")
    return found


def run(
    page: Path, directory: Path, env: Mapping[str, str] | None = None, *, install: bool = True
) -> list[str]:
    """Type a page in a directory; give what each command printed.

    Raises
    ------
    AssertionError
        A command failed, printed something on standard error (unless `install`), or something else
        than the page says.
    """
    typed = commands(page.read_text(), install=install)
    outputs = [directory / f".output-{i}" for i in range(len(typed))]
    script = "set -euo pipefail\n"
    for command, output in zip(typed, outputs, strict=True):
        script += f"{{\n{command.source}}} > '{output}'\n"
    shell = subprocess.run(
        ["bash", "-c", script], cwd=directory, env=env, stderr=subprocess.PIPE, text=True
    )
    printed = [output.read_text() for output in outputs if output.exists()]
    assert shell.returncode == 0, f"{typed[len(printed) - 1].source}{printed[-1]}{shell.stderr}"
    assert install or shell.stderr == "", shell.stderr
    for command, text in zip(typed, printed, strict=True):
        expected = command.output
        assert expected is None or expected.fullmatch(text), f"{command.source}printed\n{text}"
    return printed


def main() -> int:
    parser = argparse.ArgumentParser(description="Type the blocks of a page, in order.")
    parser.add_argument("page", type=Path)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    for text in run(options.page, options.directory.resolve(), os.environ):
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
