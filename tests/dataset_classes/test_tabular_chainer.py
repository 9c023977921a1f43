"""Datasets of columns beside Chainer's: the same recipes, the same questions, the same answers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recipes import MOST_ROWS, NothingToTransformError, follow, recipes, slices

from fastiter.dataset import tabular

chainer = pytest.importorskip("chainer", reason="Chainer does not import here")
theirs = pytest.importorskip("chainer.dataset.tabular")

key_choices = st.none() | st.lists(st.integers(0, 1), max_size=3).map(tuple)
row_choices = st.one_of(
    st.none(), slices, st.lists(st.integers(0, MOST_ROWS - 1), min_size=1, max_size=6)
)


def facts(value: Any) -> Any:
    """Type, dtype and content, comparable; keys that are named by an id() are all alike."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.tolist()
    if isinstance(value, np.generic):
        return type(value), value.item()
    if isinstance(value, (list, tuple)):
        return type(value), [facts(v) for v in value]
    if isinstance(value, dict):
        return dict, [(facts(k), facts(v)) for k, v in value.items()]
    if isinstance(value, str) and value.startswith("_") and value[1:].isdigit():
        return "_"
    return value


def reads_too_far(recipe: Any, *questions: Any) -> bool:
    """Whether Chainer may give rows that are not in a slice.

    Backwards, no rows may become all, and its concat in steps above 1 gives rows twice.
    """
    steps = recipe[-1]
    cuts = [part for step in steps for part in step if isinstance(part, slice)]
    cuts += [question for question in questions if isinstance(question, slice)]
    strides = [1 if cut.step is None else cut.step for cut in cuts]
    is_concat = any(step[0] == "concat" for step in steps)
    if min(strides, default=1) > 0:
        return False
    sizes = range(1, recipe[0] + 1)
    is_empty = any(not range(*cut.indices(size)) for cut in cuts for size in sizes)
    return is_empty or (is_concat and max(map(abs, strides)) > 1)


def answer(function: Any, *args: Any) -> Any:
    try:
        return facts(function(*args))
    except Exception as error:
        return "raised", type(error)


def test_the_same_answers_to_everything():
    different_errors = {
        # Chainer makes None of what from_data does not accept, and its use fails later.
        (AttributeError, TypeError),
    }

    @settings(max_examples=int(os.environ.get("FASTITER_EXAMPLES", "150")))
    @given(recipes(), row_choices, key_choices, st.integers(0, MOST_ROWS - 1), slices)
    def check(recipe, rows, key_indices, index, index_slice):
        assume(not reads_too_far(recipe, rows, index_slice))
        try:
            theirs_made = follow(theirs, recipe)
        except NothingToTransformError:
            assume(False)
        except Exception as error:
            with pytest.raises(Exception) as caught:
                follow(tabular, recipe)
            kinds = (type(error), caught.type)
            assert kinds[0] is kinds[1] or kinds in different_errors
            return
        ours_made = follow(tabular, recipe)
        size = len(theirs_made)
        assert len(ours_made) == size
        if isinstance(rows, list):
            rows = [row for row in rows if row < size]
        for dataset_questions in (
            lambda d: [d.keys, answer(lambda: d.mode)],
            lambda d: answer(d.fetch),
            lambda d: answer(lambda: d.convert(d.fetch())),
            lambda d: answer(d.get_examples, rows, key_indices),
            lambda d: answer(lambda: d[index] if index < size else None),
            lambda d: answer(lambda: d[index_slice]),
            lambda d: answer(lambda: d[[index % size, 0]] if size else None),
            lambda d: answer(lambda: list(d)),
        ):
            assert facts(dataset_questions(ours_made)) == facts(dataset_questions(theirs_made))

    check()
