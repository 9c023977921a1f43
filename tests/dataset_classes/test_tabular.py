"""Datasets of columns, where they leave Chainer's ways, and what they say of wrong arguments."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fastiter import SerialIterator
from fastiter.dataset import TabularDataset, tabular

ten = tabular.from_data(("a", np.arange(10)))


def test_rows_of_a_view_are_those_of_a_list():
    rows = list(range(10))
    for cut in (slice(2, 5), slice(None, None, -2), slice(8, 1, -3), slice(-20, None, -1)):
        view, part = ten.slice[cut], rows[cut]
        assert len(view) == len(part)
        assert list(view) == part
        for index in range(-len(part), len(part)):
            assert view[index] == part[index]
        for index in (len(part), -len(part) - 1):
            with pytest.raises(IndexError, match=f"index {index} is outside"):
                view[index]
            with pytest.raises(IndexError, match=f"index {index} is outside"):
                ten.slice[rows[cut]][index]
        for again in (slice(None), slice(None, None, -1), slice(1, None, 2)):
            assert view.slice[again].fetch().tolist() == part[again]


def test_examples_without_columns_are_empty():
    for view, empty in ((ten.slice[:, ()].astuple(), ()), (ten.slice[:, ()].asdict(), {})):
        assert len(view) == 10
        assert list(SerialIterator(view, 5, repeat=False)) == [[empty] * 5] * 2


def test_concatenated_datasets_are_asked_for_slices_up_to_the_stop_wanted():
    asked = []

    class Asked(tabular.DelegateDataset):
        def get_examples(self, indices, key_indices):
            asked.append(indices)
            return super().get_examples(indices, key_indices)

    both = Asked(ten.slice[:6]).concat(Asked(ten.slice[6:]))
    for rows, expected in [
        (slice(8, 2, -3), [slice(5, 2, -3), slice(2, None, -3)]),
        (slice(9, 2, -3), [slice(3, 2, -3), slice(3, None, -3)]),
        (slice(5, None, -2), [slice(5, None, -2)]),
        (slice(1, 8, 4), [slice(1, 6, 4)]),
        (slice(1, 10, 4), [slice(1, 6, 4), slice(3, 4, 4)]),
        (slice(7, 9, 1), [slice(1, 3, 1)]),
    ]:
        asked.clear()
        both.get_examples(rows, None)
        assert asked == expected, rows


def test_rows_of_concatenated_datasets_are_those_of_a_list():
    whole = ten.slice[:3].concat(ten.slice[3:4], ten.slice[:0], ten.slice[4:])
    rows = list(range(10))
    for step in (1, 2, 3, -1, -2, -3, -7):
        for start in (None, 0, 3, 9, -2):
            cut = slice(start, None, step)
            assert list(whole.slice[cut].fetch()) == rows[cut]
    assert list(whole.get_examples([9, 0, 3, 0], None)[0]) == [9, 0, 3, 0]
    for wrong in ([0, 10], [0, 4, -1], [10]):
        with pytest.raises(IndexError, match=f"index {wrong[-1]} is outside"):
            whole.get_examples(wrong, None)


@pytest.mark.parametrize(
    ("data", "size", "error", "text"),
    [
        (5, None, TypeError, "not int"),
        ((1, 2), None, TypeError, "not int"),
        ((), None, ValueError, "empty"),
        ({}, None, ValueError, "empty"),
        (abs, 3, ValueError, "name"),
        (("a", abs), None, ValueError, "size"),
        (([1, 2], [1, 2, 3]), None, ValueError, "length"),
        ((("a", [1]), ("a", [2])), None, ValueError, "unique"),
    ],
)
def test_from_data_refuses(data, size, error, text):
    with pytest.raises(error, match=text):
        tabular.from_data(data, size=size)


def test_wrong_views_name_what_is_wrong():
    for rows, error, text in (
        ([0, 10], IndexError, "index 10"),
        ([-11], IndexError, "index -11"),
        ([True] * 9, ValueError, "9 bools are given for 10 rows"),
        ([1.7], TypeError, "float"),
        (np.array([0.0, 1.0]), TypeError, "float"),
        (["1"], TypeError, "str"),
    ):
        with pytest.raises(error, match=text):
            ten.slice[rows]
    with pytest.raises(KeyError, match="nosuch"):
        ten.slice[:, "nosuch"]
    with pytest.raises(IndexError, match="column 1"):
        ten.slice[:, 1]
    with pytest.raises(ValueError, match="same keys"):
        ten.concat(tabular.from_data(("b", [1])))


def test_transforms_must_be_steady():
    unsteady = ten.transform(("p", "q"), lambda a: (a, a) if a < 5 else a)
    with pytest.raises(ValueError, match="a bare value after a tuple"):
        unsteady.fetch()
    with pytest.raises(ValueError, match="a column of 9 for 10 rows"):
        ten.transform_batch("p", lambda a: a[1:]).fetch()


def test_the_interface_itself_gives_nothing():
    empty = TabularDataset()
    for ask in (len, lambda d: d.keys, lambda d: d.mode, lambda d: d.get_examples(None, None)):
        with pytest.raises(NotImplementedError):
            ask(empty)


def test_datasets_of_columns_pickle():
    whole = ten.slice[::2].join(tabular.from_data(("b", list("abcde")))).asdict().concat()
    again = pickle.loads(pickle.dumps(whole))
    assert list(again) == list(whole) == [{"a": 2 * i, "b": "abcde"[i]} for i in range(5)]
