"""Draws the byte map of the shared segment.

``python docs/figures/segment.py > docs/_static/segment.svg``

Offsets and sizes are those that the compiler gives: the fields are read from the headers, and a
program made of them prints where they lie. So the figure cannot say anything else than csrc does,
and a test compares the committed file with a new drawing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CSRC = Path(__file__).resolve().parents[2] / "csrc"
SOURCES = ["ring/fi_ring.c", "ring/fi_window.c", "ring/fi_worker_stat.c", "ring/fi_trace.c"]
SOURCES += ["batch/fi_copy.c", "os/fi_platform.c", "os/fi_process.c"]

# The segment drawn: two workers, batches of 64, n_prefetch=1, without spares for forks.
GEOMETRY = {"slots": 6, "workers": 2, "rows": 64, "schemas": 4, "slot_bytes": 64 << 20}

AREAS = {
    "board": "where head and tail of the ring are",
    "map": "slot of each sequence number",
    "pwait": "what the parent sleeps for",
    "bells": "1 while that worker sleeps",
    "worker_stats": "what each worker reports of itself",
    "slots": "a header for each slot",
    "words": "the truth about each row",
    "indices": "dataset index of each row",
    "entries": "offset and length of packed rows",
    "schemas": "dtype and shape of the columns",
    "start_errors": "why a worker could not start",
    "traces": "what each worker did, while a trace is recorded",
    "payload": "the slots: of each batch the columns, then the heap",
}
STRUCTS = {"board": "fi_board", "slots": "fi_slot", "worker_stats": "fi_worker_stat"}
TITLES = {
    "board": "board",
    "slots": "header of one slot: who takes rows, then who fills them",
    "worker_stats": "fi_worker_stat of one worker",
}

PROGRAM = """
#include <stdio.h>
#include <stddef.h>
#include "ring/fi_ring.h"
int main(void)
{{
    fi_geometry g = {{{geometry}}};
    fi_ring ring;
    uint64_t control, total;
    static char base[1 << 20];
    if (fi_ring_size(&g, &control, &total) != FI_OK ||
        fi_ring_attach(&ring, &g, base, -1, -1) != FI_OK)
        return 1;
    printf("total %llu\\n", (unsigned long long)total);
    {prints}
    printf("word q %llx\\n", (unsigned long long)fi_word(UINT32_MAX, 0, 0, 0));
    printf("word owner %llx\\n", (unsigned long long)fi_word(0, UINT32_MAX, 0, 0));
    printf("word code %llx\\n", (unsigned long long)fi_word(0, 0, UINT32_MAX, 0));
    printf("word flags %llx\\n", (unsigned long long)fi_word(0, 0, 0, UINT32_MAX));
    return 0;
}}
"""


class Field(NamedTuple):
    name: str
    offset: int
    size: int


class Layout(NamedTuple):
    total: int  # bytes of the whole segment
    areas: dict[str, int]  # offset of each
    fields: dict[str, list[Field]]  # of each structure
    sizes: dict[str, int]  # of each structure
    word: dict[str, tuple[int, int]]  # lowest bit and number of bits


def field_names(struct: str) -> list[str]:
    """The fields of a structure, in their order, as the headers have them."""
    headers = "".join(path.read_text() for path in sorted(CSRC.rglob("*.h")))
    body = re.search(rf"typedef struct {struct} {{(.*?)}} {struct};", headers, re.DOTALL)
    if body is None:
        raise ValueError(f"no header of csrc defines {struct}")
    code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    return [re.findall(r"\w+", re.sub(r"\[.*?\]", "", line))[-1] for line in code.split(";")[:-1]]


def measure() -> Layout:
    """Compile and run the program that prints the layout."""
    starts = {area: f"(char *)ring.{area} - base" for area in AREAS}
    starts["payload"] = "(ptrdiff_t)ring.payload"  # an offset: slots are mapped one by one
    prints = [f'printf("area {area} %td\\n", {start});' for area, start in starts.items()]
    for struct in STRUCTS.values():
        prints.append(f'printf("size {struct} %zu\\n", sizeof({struct}));')
        prints += [
            f'printf("field {struct} {name} %zu %zu\\n", offsetof({struct}, {name}), '
            f"sizeof((({struct} *)0)->{name}));"
            for name in field_names(struct)
        ]
    geometry = ", ".join(f".{name} = {value}" for name, value in GEOMETRY.items())
    source = PROGRAM.format(geometry=geometry, prints="\n    ".join(prints))
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "layout")
        program.with_suffix(".c").write_text(source)
        command = [os.environ.get("CC", "cc"), "-std=c11", "-pthread", f"-I{CSRC}"]
        command += [
            f"{program}.c",
            *(str(CSRC / name) for name in SOURCES),
            "-lm",
            "-o",
            str(program),
        ]
        if sys.platform == "linux":
            command.append("-lrt")
        subprocess.run(command, check=True)
        lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return parse(lines)


def parse(lines: str) -> Layout:
    total = 0
    areas: dict[str, int] = {}
    fields: dict[str, list[Field]] = {struct: [] for struct in STRUCTS.values()}
    sizes: dict[str, int] = {}
    word: dict[str, tuple[int, int]] = {}
    for kind, *rest in map(str.split, lines.splitlines()):
        if kind == "total":
            total = int(rest[0])
        elif kind == "area":
            areas[rest[0]] = int(rest[1])
        elif kind == "size":
            sizes[rest[0]] = int(rest[1])
        elif kind == "field":
            fields[rest[0]].append(Field(rest[1], int(rest[2]), int(rest[3])))
        else:
            mask = int(rest[1], 16)
            word[rest[0]] = ((mask & -mask).bit_length() - 1, mask.bit_count())
    return Layout(total, areas, fields, sizes, word)


# ---- drawing -----------------------------------------------------------------------------------

WIDTH, TOP, ROW = 980, 66, 28
LINE_X, LINE_WIDTH = 16, 948  # of a cache line of 64 bytes
COLOURS = ["#dcebf7", "#eaf4dc", "#fdf0d5", "#f7e1e1", "#e8e3f5", "#ddf0ee"]


def text(x: float, y: float, content: str, style: str = "label") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{style}">{content}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
        'stroke="#7d8790"/>'
    )


def bytes_of(count: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} B"


def draw_areas(layout: Layout) -> list[str]:
    parts = [text(16, 52, "offset", "head"), text(110, 52, "area", "head")]
    parts.append(text(700, 52, "bytes, with what aligns the next", "head"))
    ends = [*list(layout.areas.values())[1:], layout.total]
    for i, ((name, start), end) in enumerate(zip(layout.areas.items(), ends, strict=True)):
        y = TOP + i * ROW
        parts.append(box(104, y, 760, ROW, COLOURS[i % len(COLOURS)]))
        parts.append(text(16, y + 20, f"0x{start:06x}", "code"))
        parts.append(text(112, y + 20, name, "name"))
        parts.append(text(200, y + 20, AREAS[name], "small"))
        parts.append(text(700, y + 20, bytes_of(end - start), "code"))
    return parts


def draw_struct(layout: Layout, area: str, y: float) -> tuple[list[str], float]:
    """A structure, one row for each 64 bytes; returns where the next one may begin."""
    struct = STRUCTS[area]
    scale = LINE_WIDTH / 64
    fill = COLOURS[list(AREAS).index(area) % len(COLOURS)]
    size = layout.sizes[struct]
    parts = [text(LINE_X, y - 8, f"{TITLES[area]} ({struct}, {size} bytes)", "head")]
    for line in range(size // 64):
        parts.append(box(LINE_X, y + line * 50, LINE_WIDTH, 34, "#ffffff"))
    for field in layout.fields[struct]:
        line, column = divmod(field.offset, 64)
        x, top = LINE_X + column * scale, y + line * 50
        parts.append(box(x, top, field.size * scale, 34, fill))
        style = "code" if field.size * scale > 7.5 * len(field.name) + 6 else "narrow"
        parts.append(text(x + 3, top + 21, field.name, style))
        parts.append(text(x + 1, top + 45, str(field.offset), "offset"))
    return parts, y + size // 64 * 50 + 36


def draw_word(layout: Layout, y: float) -> list[str]:
    scale = LINE_WIDTH / 64
    parts = [text(LINE_X, y - 8, "row word and slot word (64 bits)", "head")]
    for i, (name, (low, bits)) in enumerate(layout.word.items()):
        x = LINE_X + (64 - low - bits) * scale
        label = "sequence" if name == "q" else name
        parts.append(box(x, y, bits * scale, 34, COLOURS[i]))
        parts.append(text(x + 4, y + 21, label, "code"))
        parts.append(text(x + 2, y + 46, f"{low + bits - 1}..{low}", "offset"))
    return parts


def draw(layout: Layout) -> str:
    parts = draw_areas(layout)
    y: float = TOP + len(AREAS) * ROW + 48
    for area in STRUCTS:
        more, y = draw_struct(layout, area, y)
        parts += more
    parts += draw_word(layout, y)
    height = y + 66
    title = "The shared segment: {slots} slots, {workers} workers, {rows} rows a slot".format(
        **GEOMETRY
    )
    style = (
        "text{font-family:Helvetica,Arial,sans-serif;fill:#1d2329}.title{font-size:16px;"
        "font-weight:bold}.head{font-size:12px;font-weight:bold}.name{font-size:13px;"
        "font-weight:bold}.small{font-size:12px}.code{font-size:12px;font-family:monospace}"
        ".narrow{font-size:9px;font-family:monospace}.offset{font-size:8px;fill:#59636c}"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'role="img" aria-label="{title}">'
    )
    background = f'<rect width="{WIDTH}" height="{height:g}" rx="8" fill="#ffffff"/>'
    return "\n".join(
        [
            head,
            f"<style>{style}</style>",
            background,
            text(16, 26, title, "title"),
            *parts,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(draw(measure()))
