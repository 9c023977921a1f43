"""Write a repository's addresses into what PyPI shows: ``addresses.py ADDRESS TAG``.

``pyproject.toml`` gets ``[project.urls]``, and links of ``README.md`` into the repository, which
lead nowhere elsewhere, begin with the address. Only builds of a release have them, since the tree
does not know by which host it is published.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGES = {
    "Homepage": "",
    "Documentation": "/blob/{tag}/docs/index.md",
    "Changelog": "/blob/{tag}/CHANGELOG.md",
    "Issues": "/issues",
}


def with_urls(project: str, address: str, tag: str) -> str:
    """The text of ``pyproject.toml`` with a table of addresses."""
    if "[project.urls]" in project:
        raise SystemExit("pyproject.toml has [project.urls]: addresses are written once")
    lines = [f'{name} = "{address}{page.format(tag=tag)}"' for name, page in PAGES.items()]
    before = "[project.optional-dependencies]\n"
    table = "\n".join(["[project.urls]", *lines, "", before])
    return project.replace(before, table, 1)


def with_whole_links(page: str, address: str, tag: str) -> str:
    """The text of a Markdown page, whose links into the repository are addresses."""
    return re.sub(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)", rf"]({address}/blob/{tag}/\1)", page)


def main(address: str, tag: str) -> None:
    if not re.fullmatch(r"https://[^\s\"]+[^/\s\"]", address):
        raise SystemExit(f"the address must begin with https:// and not end with /, not {address}")
    for name, change in (("pyproject.toml", with_urls), ("README.md", with_whole_links)):
        path = Path(name)
        path.write_text(change(path.read_text(), address, tag))


if __name__ == "__main__":
    main(*sys.argv[1:])
