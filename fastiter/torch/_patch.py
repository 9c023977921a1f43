"""Puts fastiter's loader in the place of torch's, in programs that stay as they are."""

from __future__ import annotations

import abc
import contextlib
import copyreg
import functools
import inspect
import os
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from fastiter._stats.iterator_stats import IteratorStats
from fastiter._util.concurrency import WeakObjects, renew_in_child
from fastiter._util.warn import warn_caller
from fastiter.torch import _loader
from fastiter.torch._loader import untraced
from fastiter.torch._state import generator_of

_torchs = _loader._torchs


def patch(**keywords: Any) -> Patch:
    """Put fastiter's loader in the place of `torch.utils.data.DataLoader`, until `Patch.undo`.

    Each global of a loaded module that is torch's class becomes a subclass of
    `fastiter.torch.DataLoader`, and modules that are imported later get it by their import. So
    libraries that make loaders themselves use fastiter's workers, without an edit. Local variables,
    default arguments, attributes of classes and entries of dicts are not found.

    Parameters
    ----------
    **keywords
        Arguments of `fastiter.torch.DataLoader` that torch's class does not have, for each loader
        whose caller has not set them.

    Returns
    -------
    Patch

    Raises
    ------
    TypeError, ValueError
        If a keyword is unknown, or one of torch's own, or if its value is wrong for any loader.

    Notes
    -----
    A class that was derived from torch's before keeps torch's workers. One that is derived
    meanwhile has fastiter's, unless it overrides ``_get_iterator``. A loader that fastiter's class
    refuses, and torch's takes, is torch's: `Patch.report` says why. What torch's refuses raises
    torch's error. With the environment variable ``FASTITER_RUN=0`` nothing is replaced.

    Patches may be nested, and undone in any order: the keywords of the newest count, and the last
    `Patch.undo` puts torch's class back. Loaders keep working after it.
    """
    own = _own_names() - {"in_order"}
    for name in keywords:
        if name not in own:
            raise TypeError(
                f"patch() takes the arguments that fastiter's DataLoader adds to torch's "
                f"({', '.join(sorted(own))}), not {name!r}"
            )
    checked = {name: keywords[name] for name in keywords.keys() - {"rank", "num_replicas", "tail"}}
    _loader.DataLoader(range(1), num_workers=1, **checked)
    return Patch(keywords)


@contextlib.contextmanager
def as_default(**keywords: Any) -> Iterator[Patch]:
    """`patch` in a ``with`` block, which undoes it: ``with as_default() as patched: ...``."""
    patched = patch(**keywords)
    try:
        yield patched
    finally:
        patched.undo()


class Patch:
    """The changes that `patch` has made; `patch` makes it."""

    def __init__(self, keywords: dict[str, Any], compares: bool = False) -> None:
        self._keywords = keywords
        self._compares = compares
        self._records: list[Record] = []
        self._loaders: WeakObjects[Any] = WeakObjects()
        _patches.add(self)

    def undo(self) -> None:
        """Put torch's class back, if no other patch is left. May be called again."""
        _patches.remove(self)

    @property
    def loaders(self) -> list[Any]:
        """The loaders that were made meanwhile and are alive."""
        return [*self._loaders]

    def as_dict(self) -> dict[str, Any]:
        """Figures of all loaders that were made meanwhile, the oldest first.

        Returns
        -------
        dict
            ``{"loaders": [...]}``. Each loader is a dict: ``file`` and ``line`` that made it;
            ``class``, ``batch_size`` and ``num_workers``; ``epochs`` (loops begun) and ``batches``;
            ``seconds`` in its loops, and ``wait_seconds`` of these for batches, the start of
            workers included; ``left_to_torch``: the reason why torch's own class works for it, or
            None; ``compare``: None, or both classes' figures in their turns.
        """
        return {"loaders": [record.as_dict() for record in self._records]}

    def report(self) -> str:
        """The same, to read: a line for all, and one for each place that makes loaders."""
        places: dict[tuple[str, int], list[Record]] = {}
        for record in self._records:
            places.setdefault((record.file, record.line), []).append(record)
        n_left = sum(record.left_to_torch is not None for record in self._records)
        lines = [f"fastiter: {_counted(len(self._records), 'loader')}, {n_left} left to torch"]
        for (file, line), records in places.items():
            lines += _lines(f"  {file}:{line}", records)
        return "\n".join(lines)


# ---- figures -------------------------------------------------------------------------------------


class Loops:
    """Loops over a loader by one of the two classes."""

    def __init__(self) -> None:
        self.epochs = self.batches = 0
        self.seconds = self.wait_seconds = 0.0  # in the loops, and of these for batches

    def add(self, epochs: int, batches: int, seconds: float, wait_seconds: float) -> Loops:
        self.epochs += epochs
        self.batches += batches
        self.seconds += seconds
        self.wait_seconds += wait_seconds
        return self

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds if self.seconds else 0.0


class Record:
    """A loader that was made while a patch was in force."""

    def __init__(self, file: str, line: int, kind: str) -> None:
        self.file, self.line, self.kind = file, line, kind
        self.batch_size: int | None = None
        self.num_workers = 0
        self.left_to_torch: str | None = None  #: the reason
        self.compares = False
        self.begun = Loops()  #: by fastiter: how many, and the time to make their iterators
        self.torchs = Loops()
        self.iterations: Any = None  #: of the loader while it lives
        self._stats: IteratorStats | None = None  # afterwards

    def copy(self) -> Record:
        """For a copy of the loader, which is in no report."""
        other = Record(self.file, self.line, self.kind)
        other.left_to_torch = self.left_to_torch
        return other

    def end(self) -> None:
        """The loader is gone; an iterator of it may go on."""
        if (going := self.iterations.going()) is None:
            self._stats, self.iterations = self.stats(), None
        else:
            weakref.finalize(going, self.end).atexit = False

    def stats(self) -> IteratorStats | None:
        return self._stats if (made := self.iterations) is None else made.stats()

    def ours(self) -> Loops:
        stats, begun = self.stats(), self.begun
        loops = Loops().add(begun.epochs, 0, begun.seconds, begun.seconds)
        if stats is None:
            return loops
        inside = stats.start_seconds + stats.next_seconds + stats.consumer_seconds
        return loops.add(0, stats.batches, inside, stats.start_seconds + stats.wait_seconds)

    def as_dict(self) -> dict[str, Any]:
        ours, torchs = self.ours(), self.torchs
        compare = None
        if self.compares and self.left_to_torch is None and ours.batches and torchs.batches:
            ratio = ours.rate / torchs.rate
            compare = {"fastiter": vars(ours), "torch": vars(torchs), "ratio": ratio}
        return {
            "file": self.file,
            "line": self.line,
            "class": self.kind,
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            **vars(Loops().add(**vars(ours)).add(**vars(torchs))),
            "left_to_torch": self.left_to_torch,
            "compare": compare,
        }


def _counted(n: int, noun: str, plural: str = "s") -> str:
    return f"{n} {noun}{plural * (n != 1)}"


def _lines(place: str, records: list[Record]) -> list[str]:
    """The lines of a report for the loaders that one place has made."""
    ours, torchs = Loops(), Loops()
    for record in records:
        ours.add(**vars(record.ours()))
        torchs.add(**vars(record.torchs))
    both = Loops().add(**vars(ours)).add(**vars(torchs))
    waiting = both.wait_seconds / both.seconds if both.seconds else 0.0
    made = f"{place}  {records[-1].kind}, {len(records)} made: "
    if not both.epochs and not both.batches:
        lines = [made + "no loop"]
    else:  # a subclass may keep one iterator for all epochs
        made += f"{_counted(both.epochs, 'epoch')}, " if both.epochs else ""
        made += _counted(both.batches, "batch", "es")
        # The advice below is about the time after the start.
        start = " with the start of workers" * any(each.num_workers for each in records)
        lines = [f"{made}, {both.rate:.1f} batches/s, waiting {waiting:.0%}{start}"]
    if records[-1].compares and ours.batches and torchs.batches:
        # The first loop finds files outside of the page cache, and modules that are not imported.
        caution = min(ours.epochs, torchs.epochs) == 1
        lines.append(
            f"    fastiter {ours.rate:.1f} batches/s, torch {torchs.rate:.1f} batches/s: "
            f"{ours.rate / torchs.rate:.2f}x" + ", of too few loops for a fair ratio" * caution
        )
    elif records[-1].compares and both.batches and not records[-1].left_to_torch:
        lines.append("    not compared: a loader's first loop is fastiter's, its second torch's")
    reasons = dict.fromkeys(each.left_to_torch for each in records if each.left_to_torch)
    lines += [f"    left to torch: {reason}" for reason in reasons]
    stats = next((found for each in reversed(records) if (found := each.stats())), None)
    if stats is not None and stats.batches:
        lines.append(f"    {stats.advice}")
    return lines


@functools.cache
def _measuring(kind: type[Any]) -> type[Any]:
    """A class of torch's iterators that counts and times its ``next()``."""

    def next_batch(self: Any) -> Any:
        loops, entered = self._fastiter_loops, perf_counter()
        if self._fastiter_left:
            loops.seconds += entered - self._fastiter_left
        self._fastiter_left = 0.0
        try:
            batch = kind.__next__(self)
        finally:
            took = perf_counter() - entered
            loops.add(0, 0, took, took)
        loops.batches += 1
        self._fastiter_left = perf_counter()
        return batch

    return type(kind.__name__, (kind,), {"__next__": next_batch, "__module__": kind.__module__})


def _measured(iterator: Any, loops: Loops) -> Any:
    """Has an iterator of torch's class count into ``loops``."""
    iterator._fastiter_loops, iterator._fastiter_left = loops, 0.0
    kind: Any = type(iterator)
    iterator.__class__ = _measuring(kind)
    return iterator


# ---- the class in the place of torch's -----------------------------------------------------------


class _Patches:
    """The patches in force, and their way in and out of the loaded modules."""

    def __init__(self) -> None:
        self._all: list[Patch] = []
        self._after_fork()
        renew_in_child(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()

    def add(self, patched: Patch) -> None:
        with self._lock:
            self._all = [*self._all, patched]
            if os.environ.get("FASTITER_RUN") != "0":
                _torchs.__reduce_ex__ = _reduced
                _replace(_torchs, ProgramLoader)

    def remove(self, patched: Patch) -> None:
        with self._lock:
            self._all = [each for each in self._all if each is not patched]
            if not self._all:
                _replace(ProgramLoader, _torchs)
                with contextlib.suppress(AttributeError):
                    del _torchs.__reduce_ex__

    @property
    def keywords(self) -> dict[str, Any]:
        """For loaders that are made now."""
        return next((each._keywords for each in reversed(self._all)), {})

    @property
    def compares(self) -> bool:
        """Whether loaders that are made now take turns with torch's."""
        return any(each._compares for each in self._all)

    def note(self, loader: Any, record: Record) -> None:
        for each in self._all:
            each._records.append(record)
            each._loaders.add(loader)


def _replace(old: type, new: type) -> None:
    """Put one class in the place of another in all globals of loaded modules."""
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and name.partition(".")[0] != "fastiter":
            for each in (names, *_globals_of_functions(names)):
                for key, value in list(each.items()):
                    if value is old:
                        each[key] = new


def _globals_of_functions(names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The globals of the main module's functions, in a process that multiprocessing has started:
    the module's own names are a copy of them."""
    if names.get("__name__") != "__mp_main__":
        return
    for value in list(names.values()):
        for one in (value, *vars(value).values()) if isinstance(value, type) else (value,):
            if type(one) is types.FunctionType and one.__module__ == "__mp_main__":
                yield one.__globals__
                return


def _reduced(loader: Any, protocol: Any) -> Any:
    """`__reduce_ex__` of torch's class while its name means another class."""
    found = object.__reduce_ex__(loader, protocol)
    if type(loader) is _torchs and isinstance(found, tuple):
        function, _, *rest = found
        if function in (copyreg.__newobj__, copyreg._reconstructor):  # type: ignore[attr-defined]
            return _new_of_torchs, (), *rest
    return found


def _new_of_torchs() -> Any:
    return _torchs.__new__(_torchs)


# Without a type's argument: the documentation is built where torch, its base, is not there.
class ProgramLoader(_loader.DataLoader, metaclass=abc.ABCMeta):  # type: ignore[type-arg]
    """`fastiter.torch.DataLoader` where the program says torch's: what fastiter refuses is left to
    torch's class, and the record says why. Loaders of torch's class are instances of it, too."""

    __class_getitem__: Any = classmethod(types.GenericAlias)
    _record: Record | None = None  # as of a subclass whose constructor does not call this one's
    _is_turn_of_torch = False  # in this loop, where the classes are compared
    _kept_of_torch: Any = None  # the iterator that persists, of these loops

    @classmethod
    def __subclasshook__(cls, found: Any) -> Any:  # also of ``isinstance``
        return issubclass(found, _torchs) if cls is ProgramLoader else NotImplemented

    @untraced
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        if ProgramLoader not in type(self).__mro__:  # of an older subclass, by its base's name
            _torchs.__init__(self, *arguments, **keywords)
            return
        record = self._record = Record(*_place(self), type(self).__qualname__)
        refused = ""  # the reason: the exception would keep this frame
        try:
            super().__init__(*arguments, **{**_patches.keywords, **keywords})
        except Exception as error:
            if _own_names() & keywords.keys():  # of a caller who knows that it is fastiter's
                raise
            refused = f"{type(error).__name__}: {error}"
        if refused:
            self.__dict__.pop("_DataLoader__initialized", None)
            _torchs.__init__(self, *arguments, **keywords)  # or its error
            record.left_to_torch = refused
        if type(self)._get_iterator is not ProgramLoader._get_iterator:
            record.left_to_torch = f"{type(self).__qualname__} overrides _get_iterator"
        record.batch_size, record.num_workers = self.batch_size, self.num_workers
        record.compares = _patches.compares
        if record.left_to_torch is None:
            record.iterations = self._iterations
            weakref.finalize(self, record.end).atexit = False
        _patches.note(self, record)

    def _is_ours(self) -> bool:
        """Whether fastiter's class makes this loop's batches, if it can."""
        record = self._record
        return record is not None and record.left_to_torch is None and not self._is_turn_of_torch

    def _has_state(self) -> bool:
        return self._is_ours() and super()._has_state()

    def state_dict(self) -> dict[str, Any]:
        """As in the base class; empty where torch's class makes the batches, since frameworks save
        what has this method."""
        if self._has_state():
            return super().state_dict()
        left = self._record and self._record.left_to_torch
        why = left or self._why_torchs() or "it is torch's turn"
        warn_caller(UserWarning(f"a loader whose batches torch's class makes has no state: {why}"))
        return {}

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
        self._is_turn_of_torch = False
        if state_dict or self._has_state():
            super().load_state_dict(state_dict, strict)

    def _require_state(self) -> None:
        if not self._is_ours():
            why = self._record and self._record.left_to_torch
            raise RuntimeError(f"a loader whose batches torch's class makes has no state: {why}")
        super()._require_state()

    def _get_iterator(self) -> Any:
        record = getattr(self, "_record", None)
        refused = None if record is None else self._why_torchs()
        if record is not None and self._has_state():
            generator = generator_of(self)
            drawn = generator.get_state()
            try:
                return super()._get_iterator()
            except Exception as error:
                if self._loaded is not None:  # torch's could not go on from there
                    raise
                refused = f"{type(error).__name__}: {error}"
            generator.set_state(drawn)
        made = _torchs._get_iterator(self)  # or its error
        if record is None:
            return made
        record.left_to_torch = refused or record.left_to_torch
        return _measured(made, record.torchs)

    @untraced
    def __iter__(self) -> Any:
        record, began = getattr(self, "_record", None), perf_counter()
        if record is None:  # as of a subclass that is older than the patch
            return _torchs.__iter__(self)
        n_loops = record.begun.epochs + record.torchs.epochs
        goes_on = record.left_to_torch is None and self._loaded is not None
        self._is_turn_of_torch = record.compares and n_loops % 2 == 1 and not goes_on
        loops = record.torchs
        if record.left_to_torch is not None:
            made = _torchs.__iter__(self)
        elif not self._is_turn_of_torch:
            made = super().__iter__()
            loops = record.begun if record.left_to_torch is None else loops
        else:
            ours, self._iterator = self._iterator, self._kept_of_torch
            try:
                made = _torchs.__iter__(self)
            finally:
                self._kept_of_torch, self._iterator = self._iterator, ours
        took = perf_counter() - began
        loops.add(1, 0, took, took)
        return made

    def __len__(self) -> int:
        return super().__len__() if hasattr(self, "_record") else int(_torchs.__len__(self))

    def _fresh(self) -> dict[str, Any]:
        return {**super()._fresh(), "_record": self._record and self._record.copy()}


functools.update_wrapper(ProgramLoader.__init__, _loader.DataLoader.__init__)  # for its signature
DataLoader = ProgramLoader  # by this name it is pickled
ProgramLoader.__name__ = ProgramLoader.__qualname__ = "DataLoader"


def _place(loader: Any) -> tuple[str, int]:
    """File and line of the program that makes a loader: outside of torch and of the constructors of
    its own class."""
    frame: Any = sys._getframe(2)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        # Of no other frames: f_locals would keep the program's objects alive as long as these.
        is_own = frame.f_code.co_name == "__init__" and _first_argument(frame) is loader
        if not is_own and module not in ("torch", "fastiter"):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _first_argument(frame: Any) -> Any:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return frame.f_locals.get(names[0]) if names else None


def _own_names() -> set[str]:
    ours = inspect.signature(_loader.DataLoader.__init__).parameters.keys()
    return ours - inspect.signature(_torchs.__init__).parameters.keys()


_patches = _Patches()
