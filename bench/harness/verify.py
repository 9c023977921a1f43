"""The consumer of every pipeline benchmark: is each example there, once, in order, and right?

It stands for the training step, so it is the same for every candidate and must itself cost next to
nothing: what each batch must show is worked out before the clock starts, and a timed check is a few
vectorised reads and one comparison of bytes per array. It reads one byte per page of every row, so
that no candidate can return memory that was never filled. Whole batches are compared outside the
timed part (`check_fully`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

PAGE = 4096
WHOLE = 16  # rows of at most this many bytes, the index above all, are compared whole
STACKED = 256  # rows looked at together when the expectations are made


class WrongContent(ValueError):
    """A batch that is not what the dataset gives for the indices that were due."""


class _Expected(NamedTuple):
    """The expected content of one array of a batch.

    `places` are the elements that are read of a padded array, None for others. Texts are a list,
    and have no shape and dtype.
    """

    shape: tuple[int, ...]
    dtype: np.dtype | None
    places: np.ndarray | None
    probes: bytes | list[str]


def _probe(array: np.ndarray) -> np.ndarray:
    """One byte per page of each row of `array`, all of small rows: uint8 (n, bytes read)."""
    rows = array.reshape(len(array), -1).view(np.uint8)
    return rows if rows.shape[1] <= WHOLE else rows[:, ::PAGE]


def form_of(example: Any) -> Any:
    """The containers of an example, with None for each value in them."""
    if isinstance(example, dict):
        return {key: form_of(value) for key, value in example.items()}
    return tuple(map(form_of, example)) if isinstance(example, tuple) else None


def fields_of(nested: Any, form: Any) -> list[Any]:
    """The values of an example, or the arrays of a batch, in a flat list."""
    if form is None:
        return [nested]
    if isinstance(form, dict):
        if list(nested) != list(form):
            raise WrongContent(f"keys {list(nested)} came where {list(form)} were due")
        nested, form = nested.values(), form.values()
    elif len(nested) != len(form):
        raise WrongContent(f"{len(nested)} fields came where {len(form)} were due")
    fields = []
    for value, inner in zip(nested, form, strict=True):
        if inner is None:
            fields.append(value)
        else:
            fields += fields_of(value, inner)
    return fields


def _places(lengths: np.ndarray, width: int) -> np.ndarray:
    """Flat places of first, last and first padding element of each row of an (n, width) array."""
    starts = np.arange(len(lengths)) * width
    short = lengths < width
    return np.concatenate([starts, starts + lengths - 1, (starts + lengths)[short]])


class Verifier:
    """Checks batch after batch of endless epochs in sequential order.

    ``batch_size`` must divide ``len(dataset)``: each epoch then consists of the same batches. A
    field with a fill value in ``padding`` is ragged, one-dimensional and comes padded.
    """

    def __init__(
        self, dataset: Any, batch_size: int, padding: Sequence[int | None] | None = None
    ) -> None:
        if len(dataset) % batch_size:
            raise ValueError(
                f"batch_size {batch_size} must divide the length of the dataset, {len(dataset)}"
            )
        self.number = 0  # of the batch that is due next in the epoch
        self.epochs = 0  # complete ones
        self._dataset = dataset
        self._batch_size = batch_size
        first = dataset.reference(0)
        self._form = form_of(first)
        self._fill = list(padding or [None] * len(fields_of(first, self._form)))
        self._batches = self._expect()

    def _expect(self) -> list[list[_Expected]]:
        """The expected content of every batch of an epoch, per array."""
        dataset = self._dataset
        contents = [fields_of(dataset.reference(i), self._form) for i in range(dataset.distinct)]
        columns = []
        for place, values in enumerate(zip(*contents, strict=True)):
            if isinstance(values[0], str):
                columns.append(self._expect_texts(np.array(values)))
                continue
            arrays = [np.asarray(value) for value in values]
            if place == dataset.index_field:
                columns.append(self._expect_index(arrays[0]))
            elif self._fill[place] is not None:
                columns.append(self._expect_padded(arrays, self._fill[place]))
            else:
                columns.append(self._expect_rows(arrays))
        return [list(arrays) for arrays in zip(*columns, strict=True)]

    def _batches_of(self, values: np.ndarray) -> list[np.ndarray]:
        """`values`, given per distinct content, for the indices of each batch of an epoch."""
        indices = np.arange(len(self._dataset)) % len(values)
        return [values[rows] for rows in indices.reshape(-1, self._batch_size)]

    def _expect_rows(self, arrays: list[np.ndarray]) -> list[_Expected]:
        probes = np.concatenate(
            [
                _probe(np.stack(arrays[start : start + STACKED]))
                for start in range(0, len(arrays), STACKED)
            ]
        )
        shape = (self._batch_size, *arrays[0].shape)
        batches = self._batches_of(probes)
        return [_Expected(shape, arrays[0].dtype, None, rows.tobytes()) for rows in batches]

    def _expect_texts(self, texts: np.ndarray) -> list[_Expected]:
        return [_Expected((), None, None, rows.tolist()) for rows in self._batches_of(texts)]

    def _expect_index(self, example: np.ndarray) -> list[_Expected]:
        indices = np.arange(len(self._dataset), dtype=example.dtype)
        shape = (self._batch_size, *example.shape)
        batches = indices.reshape(-1, self._batch_size)
        return [_Expected(shape, example.dtype, None, rows.tobytes()) for rows in batches]

    def _expect_padded(self, arrays: list[np.ndarray], fill: int) -> list[_Expected]:
        lengths = np.array([len(array) for array in arrays])
        firsts = np.array([array[0] for array in arrays])
        lasts = np.array([array[-1] for array in arrays])
        expected = []
        for rows in self._batches_of(np.arange(len(arrays))):
            width = int(lengths[rows].max())
            places = _places(lengths[rows], width)
            fills = np.full(len(places) - 2 * len(rows), fill, firsts.dtype)
            probes = np.concatenate([firsts[rows], lasts[rows], fills]).tobytes()
            expected.append(_Expected((len(rows), width), firsts.dtype, places, probes))
        return expected

    def check(self, batch: Any) -> None:
        """Checks the batch that is due next: cheap, inside the timed part. WrongContent names the
        batch, the field and the first wrong row."""
        for field, (array, expected) in enumerate(
            zip(fields_of(batch, self._form), self._batches[self.number], strict=True)
        ):
            if expected.dtype is None:
                if array != expected.probes:
                    raise WrongContent(
                        f"epoch {self.epochs}, batch {self.number}, field {field}: not the texts"
                    )
                continue
            if array.shape != expected.shape or array.dtype != expected.dtype:
                raise WrongContent(
                    f"epoch {self.epochs}, batch {self.number}, field {field}: "
                    f"{array.dtype}{array.shape} came, {expected.dtype}{expected.shape} was due"
                )
            if expected.places is None:
                probes = _probe(array)
            else:
                probes = array.reshape(-1).take(expected.places)
            if probes.tobytes() != expected.probes:
                raise WrongContent(self._explain(field, probes, expected))
        self.number += 1
        if self.number == len(self._batches):
            self.number = 0
            self.epochs += 1

    def _explain(self, field: int, probes: np.ndarray, expected: _Expected) -> str:
        due = np.frombuffer(expected.probes, probes.dtype).reshape(probes.shape)
        place = int(np.nonzero((probes != due).reshape(len(probes), -1).any(axis=1))[0][0])
        came, wanted = (np.atleast_1d(rows[place])[:16] for rows in (probes, due))
        return (
            f"epoch {self.epochs}, batch {self.number}, field {field}, "
            f"row {place % self._batch_size}: {came} came where {wanted} was due"
        )

    def check_fully(self, batch: Any) -> None:
        """Compares every byte of the batch that is due next, then `check`: slow, never timed."""
        first = self.number * self._batch_size
        indices = range(first, first + self._batch_size)
        examples = [fields_of(self._dataset.reference(index), self._form) for index in indices]
        for field, array in enumerate(fields_of(batch, self._form)):
            if isinstance(array, list):  # texts, which `check` compares all
                continue
            for row, example in enumerate(examples):
                value = np.asarray(example[field])
                got = array[row]
                if self._fill[field] is not None:
                    got, rest = got[: len(value)], got[len(value) :]
                    if (rest != self._fill[field]).any():
                        raise WrongContent(
                            f"batch {self.number}, field {field}, row {row}: padding is not "
                            f"{self._fill[field]} throughout"
                        )
                if got.dtype != value.dtype or not np.array_equal(got, value):
                    raise WrongContent(
                        f"batch {self.number}, field {field}, row {row}: not the content of index "
                        f"{first + row}"
                    )
        self.check(batch)
