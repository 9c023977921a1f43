"""Makes batches of a dataset in the calling thread; knows the converter for all iterators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fastiter._collate import collate
from fastiter._collate.columns import collate_columns
from fastiter._collate.numpy_fallback import fill_casts
from fastiter._collate.padding import Padding
from fastiter._device import devices
from fastiter._fetch.dataset_access import ColumnGatherer, column_getter, columns_of
from fastiter._fetch.gather import ColumnReader
from fastiter._fetch.reader import DatasetReader, reader_of
from fastiter._fetch.seeded import SeededCall, SeededExamples
from fastiter._util.concurrency import made_once
from fastiter._util.failures import Failure, FailurePolicy, is_skippable, merged
from fastiter.dataset.convert import concat_examples

if TYPE_CHECKING:
    from fastiter._device.transfer import AsyncTransfer
    from fastiter._fetch.seeded import Seeding
    from fastiter._order.example_context import Seed
    from fastiter._order.plan import Plan
    from fastiter._plan.state import Indices

_KEYWORDS = {"padding", "copy", "max_length", "pad_to_multiple", "return_lengths"}


class ConcatOptions(NamedTuple):
    """The arguments of a converter that is concat_examples."""

    padding: Padding
    copy: bool

    def for_dataset(self, dataset: Any) -> ConcatOptions:
        """The same, with what a dataset of columns says about them."""
        columns = columns_of(dataset)
        known = () if columns is None else (columns.fills, columns.lists, columns.nested)
        return self._replace(padding=self.padding.for_dataset(*known))


def concat_of(converter: Callable[..., Any] | None) -> ConcatOptions | None:
    """Return what concat_examples, also in a `functools.partial`, is called with; None for any
    other converter. Raises TypeError or ValueError if an argument is not valid."""
    if converter is concat_examples:
        return ConcatOptions(Padding(), False)
    if (
        type(converter) is functools.partial
        and converter.func is concat_examples
        and not converter.args
        and converter.keywords.keys() <= _KEYWORDS
    ):
        keywords = dict(converter.keywords)
        copy = bool(keywords.pop("copy", False))
        return ConcatOptions(Padding(**keywords), copy)
    return None


def _without_device(converter: Callable[[Any], Any], examples: Any, device: Any) -> Any:
    return converter(examples)


def called_with_both(converter: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a converter to be called with batch and device. Where the signature takes the batch
    only, as torch's collate functions do, it drops the device."""
    try:
        signature = inspect.signature(converter)
    except (TypeError, ValueError):  # builtins of C have none
        return converter
    if _binds(signature, 2) or not _binds(signature, 1):
        return converter
    return functools.partial(_without_device, converter)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


class BatchMaker:
    """Makes batches of a dataset, without examples where the result is the same."""

    def __init__(
        self,
        dataset: Any,
        converter: Callable[..., Any] | None,
        device: Any,
        seeding: Seeding | None = None,
    ) -> None:
        self.dataset = dataset if seeding is None else SeededExamples(dataset, seeding)
        #: called with batch and device
        self.converter = None if converter is None else called_with_both(converter)
        self._device = device
        self._target = devices.resolve(device)
        self._gpu: AsyncTransfer | None = None
        self.is_on_gpu = isinstance(self._target, devices.GpuDevice)
        concat = concat_of(converter)
        #: None if the converter is not concat_examples
        self.concat = None if concat is None else concat.for_dataset(dataset)
        #: whether the converter, which is not concat_examples, uses the device
        self.takes_device = self.concat is None and self.converter is converter
        if seeding is not None and self.converter is not None and self.concat is None:
            self.converter = SeededCall(self.converter, seeding)
        self._reader: DatasetReader | None = None  # found out with the first batch
        self._gatherer: ColumnGatherer | None = None
        #: makes a batch at once, or returns None; None if it is not known to be of use
        self.gather: Callable[[Any], Any] | None = None

    def batch(self, plan: Plan, seed: Seed, policy: FailurePolicy | None = None) -> Any:
        """Fetch a batch and convert it; return it or its `Failure`. Without a ``policy``, which
        decides about examples that fail, the first of them ends the batch."""
        indices = plan.indices
        if self.concat is not None:
            arrays = self._arrays(indices, self.concat, policy is not None)
            if arrays is not None:
                return self.sent(arrays)
        examples, failures = self.reader().examples(indices, (seed, plan), policy is not None)
        if failures:
            assert policy is not None
            replaced = policy.resolve(plan, failures)
            if isinstance(replaced, Failure):
                return replaced
            examples = merged(examples, failures, replaced)
        if self.converter is None:
            return examples
        return self.batch_of(examples, indices)

    def batch_of(self, examples: list[Any], indices: Indices | None = None) -> Any:
        """Convert examples to a batch; ``indices`` as of `collate.collate`."""
        if self.converter is None:
            return examples
        if self.concat is not None:
            padding, copy = self.concat
            batch = collate.collate(examples, padding, copy=copy, indices=indices)
            return self.sent(batch)
        return self.convert(examples)

    def convert(self, examples: list[Any]) -> Any:
        """Call the converter, which is not concat_examples, and send its result to the device."""
        assert self.converter is not None
        batch = self.converter(examples, self._device)
        return batch if self.takes_device else self.sent(batch)

    def reader(self) -> DatasetReader:
        """The reader of the dataset now: its arrays may have been replaced."""
        reader = self._reader
        if reader is None or not reader.is_current:
            reader = self._reader = reader_of(self.dataset)
        return reader

    @made_once
    def _column_getter(self) -> Callable[[list[int]], tuple[Any, ...]] | None:
        return column_getter(self.dataset)

    def plain(self) -> ColumnReader | None:
        """The reader of the dataset's arrays if it consists of them, else None."""
        return self.reader().columns

    def _arrays(self, indices: Indices, concat: ConcatOptions, tolerates: bool) -> Any:
        """Return the batch if it can be made without examples. ``tolerates``: None too if the
        dataset raises."""
        plain = self.plain()
        if plain is not None:
            if not plain.is_fixed:
                return self.gatherer(plain).gather(indices)
            if not self.fills_suit(plain):
                return None
            if concat.padding.is_none and self._device is None and not plain.delegates:
                self.gather = plain.gather
            return plain.gather(indices)
        getter = self._column_getter
        if getter is None:
            return None
        try:
            columns = getter(indices.tolist())
        except Exception as error:
            if not tolerates or not is_skippable(error):
                raise
            return None
        return collate_columns(self.dataset, columns, len(indices), *concat, indices=indices)

    def fills_suit(self, plain: ColumnReader) -> bool:
        """Whether concat_examples' result is the rows of the columns: it accepts the padding, which
        has no effect on rows of equal shapes."""
        if self.concat is None or (padding := self.concat.padding).is_none:
            return self.concat is not None
        if not padding.only_fills or isinstance(padding.padding, (tuple, dict)):
            return False
        return all(fill_casts(padding.padding, dtype) for dtype in plain.dtypes)

    def only_gathers(self) -> bool:
        """Whether a batch is made of columns alone, which no other process has to read."""
        return self.concat is not None and self.plain() is not None

    def gatherer(self, plain: ColumnReader) -> ColumnGatherer:
        """The gatherer of columns whose rows differ in size. It is made with other filters of
        warnings, which are the program's: by the thread that iterates."""
        kept = self._gatherer
        if kept is None or kept.reader is not plain:
            assert self.concat is not None
            kept = self._gatherer = ColumnGatherer(plain, self.concat.padding)
        return kept

    def sent(self, batch: Any) -> Any:
        """Send an array, or a list, tuple or dict of arrays, to the iterator's device."""
        return self.gpu().send(batch) if self.is_on_gpu else devices.send_batch(self._target, batch)

    def gpu(self) -> AsyncTransfer:
        """Return what copies batches to the iterator's GPU. Initialises CUDA."""
        if self._gpu is None:
            from fastiter._device.transfer import AsyncTransfer

            self._gpu = AsyncTransfer(self._target.id)
        return self._gpu

    def close(self) -> None:
        """End the copies to a GPU, and give back the memory that they needed."""
        gpu, self._gpu = self._gpu, None
        if gpu is not None:
            gpu.close()
