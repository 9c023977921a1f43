"""Recipes of datasets of columns, which any library with Chainer's interface can follow.

A recipe is data: a column set to begin with, and the steps that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

MOST_ROWS = 6


class NothingToTransformError(Exception):
    """The recipe transforms no rows, so that nothing tells the mode."""


def square(i: int) -> int:
    return i * i


def both_ways(i: int) -> tuple[int, int]:
    return i, -i


def one_of_two(*values: Any, **named: Any) -> str:
    return "+".join(str(np.asarray(value).tolist()) for value in [*values, *named.values()])


def as_pair(*values: Any, **named: Any) -> tuple[str, int]:
    return one_of_two(*values, **named), len(values) + len(named)


def as_dict(*values: Any, **named: Any) -> dict[str, Any]:
    first, second = as_pair(*values, **named)
    return {"q": second, "p": first, "unused": None}


def unsteady(*values: Any, **named: Any) -> Any:
    """Changes what it returns with the value."""
    text = one_of_two(*values, **named)
    return (text, 1) if "1" in text else text


FUNCTIONS = {function.__name__: function for function in (one_of_two, as_pair, as_dict, unsteady)}
KEYS_OF = {"one_of_two": "p", "as_pair": ("p", "q"), "as_dict": ("p", "q"), "unsteady": ("p", "q")}


def batched(function: Any) -> Any:
    """The same function of columns, whose result has columns."""

    def of_columns(*columns: Any, **named: Any) -> Any:
        rows = [
            function(*row[: len(columns)], **dict(zip(named, row[len(columns) :], strict=True)))
            for row in zip(*columns, *named.values(), strict=True)
        ]
        if function is as_pair:
            return [row[0] for row in rows], np.array([row[1] for row in rows], dtype=int)
        if function is as_dict:
            return {key: [row[key] for row in rows] for key in ("q", "p")}
        return [*rows, None] if function is unsteady else rows  # one row too many

    return of_columns


# ---- recipes ----------------------------------------------------------------------------------


def column_data(kind: str, size: int, salt: int) -> Any:
    numbers = np.arange(size) * 3 + salt
    return {
        "ints": numbers,
        "matrix": np.stack([numbers, -numbers], axis=1).astype(np.float32),
        "reversed": np.ascontiguousarray(numbers[::-1])[::-1],
        "swapped": numbers.astype(">i4"),
        "Fortran": np.asfortranarray(np.stack([numbers, -numbers], axis=1)),
        "strings": np.array([f"s{n}" for n in numbers], dtype="U8"),
        "list": [int(n) for n in numbers],
        "texts": [f"t{n}" for n in numbers],
    }[kind]


KINDS = ["ints", "matrix", "reversed", "swapped", "Fortran", "strings", "list", "texts"]

keys_of_views = st.one_of(
    st.none(),
    st.sampled_from(["a", "b", "p", "nosuch", 0, 1, -1, 7, -9]),
    st.lists(st.sampled_from(["a", "b", "p", "q", "nosuch", 0, 1, -1]), max_size=3).map(tuple),
)
slices = st.builds(
    slice,
    st.none() | st.integers(-MOST_ROWS - 1, MOST_ROWS + 1),
    st.none() | st.integers(-MOST_ROWS - 1, MOST_ROWS + 1),
    st.none() | st.sampled_from([1, 2, 3, -1, -2]),
)
row_lists = st.lists(st.integers(-MOST_ROWS, MOST_ROWS), max_size=8)
rows_of_views = st.one_of(
    slices,
    row_lists,
    row_lists.map(lambda rows: np.array(rows, dtype=int)),
    st.lists(st.booleans(), max_size=MOST_ROWS),
    st.lists(st.booleans(), max_size=MOST_ROWS).map(lambda mask: np.array(mask, dtype=bool)),
)
steps = st.one_of(
    st.tuples(st.just("slice"), rows_of_views, keys_of_views),
    st.tuples(st.just("slice"), slices, keys_of_views),
    st.tuples(st.sampled_from(["astuple", "asdict", "delegate", "with_converter"])),
    st.tuples(st.just("concat"), slices, st.booleans()),
    st.tuples(st.just("join"), st.sampled_from(KINDS), st.sampled_from(["c", "a"])),
    st.tuples(st.sampled_from(["transform", "transform_batch"]), st.sampled_from(list(FUNCTIONS))),
)


@st.composite
def recipes(draw: Any) -> tuple[Any, ...]:
    """(size, columns, form, steps)."""
    size = draw(st.integers(1, MOST_ROWS))
    kinds = draw(st.lists(st.sampled_from([*KINDS, "function", "functions"]), max_size=3))
    form = draw(st.sampled_from(["bare", "named", "tuple", "pairs", "dict"]))
    return size, tuple(kinds or ["ints"]), form, tuple(draw(st.lists(steps, max_size=4)))


def columns_of(size: int, kinds: tuple[str, ...]) -> list[tuple[Any, Any]]:
    """(key, column) of a recipe's beginning."""
    columns: list[tuple[Any, Any]] = []
    for number, kind in enumerate(kinds):
        name = "abd"[number]
        if kind == "function":
            columns.append((name, square))
        elif kind == "functions":
            columns.append(((name, name + "2"), both_ways))
        else:
            columns.append((name, column_data(kind, size, number)))
    return columns


def begin(tabular: Any, size: int, kinds: tuple[str, ...], form: str) -> Any:
    columns = columns_of(size, kinds)
    data = {
        "bare": columns[0][1],
        "named": columns[0],
        "tuple": tuple(pair if callable(pair[1]) else pair[1] for pair in columns),
        "pairs": tuple(columns),
        "dict": dict(columns),
    }
    return tabular.from_data(data[form], size=size)


def follow(tabular: Any, recipe: tuple[Any, ...]) -> Any:
    """Makes a recipe's dataset with a library's ``tabular`` module."""
    size, kinds, form, steps_ = recipe
    dataset = begin(tabular, size, kinds, form)
    for name, *arguments in steps_:
        if name == "slice":
            rows, keys = arguments
            dataset = dataset.slice[rows] if keys is None else dataset.slice[rows, keys]
        elif name == "delegate":
            dataset = tabular.DelegateDataset(dataset)
        elif name == "with_converter":
            dataset = dataset.with_converter(one_of_two)
        elif name == "concat":
            rows, is_behind = arguments
            part = dataset.slice[rows]
            dataset = dataset.concat(part) if is_behind else part.concat(dataset, part)
        elif name == "join":
            kind, key = arguments
            other = tabular.from_data((key, column_data(kind, len(dataset), 9)))
            dataset = dataset.join(other)
        elif name.startswith("transform") and len(dataset) == 0:
            raise NothingToTransformError
        elif name.startswith("transform"):
            function = FUNCTIONS[arguments[0]]
            function = function if name == "transform" else batched(function)
            dataset = getattr(dataset, name)(KEYS_OF[arguments[0]], function)
        else:
            dataset = getattr(dataset, name)()
    return dataset
