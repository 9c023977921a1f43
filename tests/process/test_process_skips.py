"""Examples that are skipped, where workers die for them or what they hold does not travel."""

from __future__ import annotations

import os

import numpy as np
import pytest
from examples_of import Blocks, LoadsNot, Misfits, killing_converter
from inside import n_restarts, pids_of, ring_of
from outside import children

from fastiter import Replacement, SkipLimitError, WorkerDiedError, concat_examples


def indices(batch):
    return [int(example[0]) for example in batch]


@pytest.mark.parametrize("deed", ["SIGKILL", "_exit0"])
def test_an_index_that_kills_every_worker_is_skipped(make, deed):
    iterator = make(Misfits(8, {5}, deed), 4, n_processes=2, on_error="skip", skip_limit=1)
    for epoch in range(2):
        assert indices(next(iterator)) == [0, 1, 2, 3]
        assert indices(next(iterator)) == [4, 6, 7]
        (record,) = iterator.skipped
        assert (record.index, record.epoch, record.times) == (5, epoch, epoch + 1)
        assert "WorkerDiedError" in record.error
    # Three deaths to be sure; in each later epoch, of which one is begun already, one is enough.
    assert n_restarts(iterator) in (4, 5)


@pytest.mark.parametrize("deed", ["SIGKILL", "a broken file"])
def test_the_rest_of_a_batch_is_converted_by_a_worker(make, deed):
    def convert(batch, device):
        return os.getpid(), len(batch)

    iterator = make(Misfits(8, {5}, deed), 4, on_error="skip", skip_limit=1, converter=convert)
    pids, sizes = zip(next(iterator), next(iterator), strict=True)
    assert sizes == (4, 3) and os.getpid() not in pids


@pytest.mark.no_stuck_rows("no later batch is to be repaired")
def test_a_skipped_index_that_kills_slows_no_later_batch(make):
    iterator = make(Misfits(12, {5}, "SIGKILL"), 4, repeat=False, on_error="skip", skip_limit=1)
    assert [indices(batch) for batch in iterator] == [[0, 1, 2, 3], [4, 6, 7], [8, 9, 10, 11]]
    assert n_restarts(iterator) == 3
    assert ring_of(iterator).fast_path_ok
    assert set(pids_of(iterator)) <= children()


def test_a_callable_is_asked_about_an_index_that_kills(make):
    asked = []

    def decide(index, error):
        asked.append((index, type(error)))
        return Replacement(np.full(5, 50))

    iterator = make(
        Misfits(6, {4}, "SIGSEGV"), 3, n_processes=1, on_error=decide, converter=concat_examples
    )
    assert next(iterator)[:, 0].tolist() == [0, 1, 2]
    assert next(iterator)[:, 0].tolist() == [3, 50, 5]
    assert asked == [(4, WorkerDiedError)]
    assert iterator.skipped == []


def test_deaths_count_for_the_limit(make):
    iterator = make(Misfits(6, {1, 2}, "SIGKILL"), 3, n_processes=1, on_error="skip", skip_limit=1)
    with pytest.raises(SkipLimitError) as caught:
        next(iterator)
    assert type(caught.value.__cause__) is WorkerDiedError
    assert indices(next(iterator)) == [3, 4, 5]


def test_a_converter_that_kills_is_no_matter_of_an_example(make):
    dataset = Misfits(12, {3}, "a broken file")
    iterator = make(dataset, 4, converter=killing_converter, on_error="skip", skip_limit=None)
    assert next(iterator)[:, 0].tolist() == [0, 1, 2]
    with pytest.raises(WorkerDiedError, match="the converter"):
        next(iterator)
    assert next(iterator)[:, 0].tolist() == [8, 9, 10, 11]


def test_a_converters_error_names_the_dataset_index_of_a_row_behind_a_skipped_one(make):
    class Uneven(Misfits):
        def __getitem__(self, index):
            return super().__getitem__(index)[: 5 - index]

    iterator = make(
        Uneven(3, {0}, "broken"), 3, on_error="skip", skip_limit=1, converter=concat_examples
    )
    with pytest.raises(ValueError, match=r"example 1 \(dataset index 2\) has \(3,\)"):
        next(iterator)


class LoadsNotAtThree(Blocks):
    """An example that cannot be loaded in the parent."""

    def __getitem__(self, index):
        return LoadsNot(3) if index == 3 else super().__getitem__(index)


@pytest.mark.parametrize("converter", [None, concat_examples])
def test_an_example_that_cannot_be_loaded_is_skipped(make, converter):
    iterator = make(LoadsNotAtThree(8, 2), 4, on_error="skip", skip_limit=1, converter=converter)
    for _ in range(3):
        assert [int(example[0]) for example in next(iterator)] == [0, 2, 4]
        assert [int(example[0]) for example in next(iterator)] == [8, 10, 12, 14]
    (record,) = iterator.skipped
    assert (record.index, record.times) == (3, 3)
    assert "DatasetError" in record.error


def test_broken_batches_that_are_held_cost_memory_and_not_progress(make):
    iterator = make(
        Misfits(40, set(range(2, 40, 4)), "broken"), 8, on_error="skip", skip_limit=None
    )
    held = [next(iterator) for _ in range(40)]
    good = [index for index in range(40) if index % 4 != 2]
    assert [index for batch in held for index in indices(batch)] == good * 8
    assert iterator.stats().copied_out > 0
