"""Rules of padding for each field of a batch, from the arguments of ``concat_examples``."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fastiter._collate.numpy_fallback import LAST, OnLeft
from fastiter._ring.schema import BARE
from fastiter._util.arguments import checked_optional_int

_length = functools.partial(checked_optional_int, maximum=(1 << 40) - 1)


class FieldRule(NamedTuple):
    """Treatment of one field. `concat` reads these by position."""

    fill: Any = None  #: fill value; None if all shapes must be equal
    max_length: int = -1  #: of the first axis; the rest is cut off. -1: no limit
    multiple: int = 1  #: the length of the padded first axis is rounded up to a multiple of it
    lengths: bool = False  #: whether the lengths of the first axis are returned, too
    named: str | None = None  #: the argument, if any, that asks for one of these for this field
    as_list: bool = False  #: whether the values become a list, not an array
    nested: Any = None  #: of values that are lists of arrays of one axis: the arrays' dtype

    def takes_whole(self, length: int) -> bool:
        """Whether an axis of `length` is left as it is, if it is that of all examples."""
        return not 0 <= self.max_length < length and (
            self.fill is None or not length % self.multiple
        )

    @property
    def only_fills(self) -> bool:
        """Whether it asks for nothing but, perhaps, a fill value."""
        return self.max_length < 0 and self.multiple == 1 and not self.lengths


class Padding:
    """The padding arguments of ``concat_examples``, checked.

    Each is one value for all fields, or one per field in a tuple or dict. TypeError or ValueError
    if a length is not an integer of at least 1, or a flag is not a bool.
    """

    def __init__(
        self,
        padding: Any = None,
        max_length: Any = None,
        pad_to_multiple: Any = None,
        return_lengths: Any = False,
    ) -> None:
        self.padding = padding
        self._lists: Any = ()  # a set, if there are any
        self._nested: Any = None
        self._options = {
            "max_length": _checked("max_length", max_length, _length),
            "pad_to_multiple": _checked("pad_to_multiple", pad_to_multiple, _length),
            "return_lengths": _checked("return_lengths", return_lengths, _flag),
        }
        #: whether only fill values were given
        self.only_fills = max_length is None and pad_to_multiple is None and not return_lengths
        #: whether there is nothing to do, for any field
        self.is_none = self.only_fills and padding is None

    def for_dataset(self, fills: Any = None, lists: Any = (), nested: Any = None) -> Padding:
        """These rules with `Columns.fills` where no padding was given, `lists` and `nested`.
        ValueError if a multiple has no padding."""
        multiple = self._options["pad_to_multiple"]
        if self.padding is None and fills is None and multiple is not None:
            raise ValueError(
                f"pad_to_multiple={multiple!r} needs padding, of concat_examples or of the dataset"
            )
        if fills is None and not lists and not nested:
            return self
        found = copy.copy(self)
        if found.padding is None:
            found.padding = fills
        elif isinstance(fills, dict):
            found.padding = _in_their_places(found.padding, fills)
        found._lists, found._nested = lists, nested
        found.is_none = False
        return found

    def for_fields(self, container: type | None, names: Sequence[Any]) -> tuple[FieldRule, ...]:
        """The rules of the fields of a tuple (their numbers) or of a dict (its keys), or of
        examples that are one field without a name. IndexError, KeyError or ValueError if an option
        is given for other fields. A padding for all keys and for others, too, is accepted.
        """
        fills: Any = dict.fromkeys(names, self.padding)
        if container is tuple and isinstance(self.padding, tuple):
            fills = dict(enumerate(self.padding))
            if len(fills) < len(names):
                raise IndexError(
                    f"padding has {len(fills)} entries for {len(names)} fields: {self.padding!r}"
                )
        elif container is dict and isinstance(self.padding, dict):
            fills = self.padding
            if not (fills.keys() <= set(names) or fills.keys() >= set(names)):
                raise KeyError(
                    f"padding has entries for {list(fills)!r:.80}, which are not fields of the "
                    f"examples, {list(names)!r:.80}"
                )
        for name, given in self._options.items():
            if not isinstance(given, (tuple, dict)):
                continue
            if container is None:
                raise ValueError(f"{name} is given per field, but examples have none: {given!r}")
            if type(given) is not container:
                raise ValueError(
                    f"{name} is a {type(given).__name__}, but the examples are "
                    f"{container.__name__}s: {given!r}"
                )
            if isinstance(given, tuple) and len(given) != len(names):
                raise ValueError(
                    f"{name} has {len(given)} entries for {len(names)} fields: {given!r}"
                )
            if isinstance(given, dict) and not given.keys() <= set(names):
                raise ValueError(f"{name} has keys that the examples {list(names)} lack: {given!r}")
        return tuple([self._rule(name, fills.get(name), container) for name in names])

    def _rule(self, field: Any, fill: Any, container: type | None) -> FieldRule:
        if field in self._lists:
            return FieldRule(as_list=True)
        nested = (self._nested or {}).get(field)
        if self.only_fills:
            return FieldRule(fill, nested=nested)
        values: list[Any] = []
        named = None
        for name, given in self._options.items():
            value: Any = given
            if isinstance(given, dict):
                value = given.get(field)
            elif isinstance(given, tuple):
                value = given[field]
            if name == "pad_to_multiple" and value == 1:
                value = None  # asks for nothing
            if value and (value is not given or container is None):
                named = name
            values.append(value)
        max_length, multiple, lengths = values
        if multiple is not None and fill is None:
            if multiple is not self._options["pad_to_multiple"]:
                raise ValueError(
                    f"pad_to_multiple asks for a multiple of {multiple} in field {field!r}, which "
                    "has no fill value: give it one in padding"
                )
            multiple = None
        return FieldRule(fill, max_length or -1, multiple or 1, bool(lengths), named, nested=nested)


def fields_of(container: int, keys: Sequence[Any] | None, count: int) -> tuple[Any, Sequence[Any]]:
    """The type of the examples that columns are of, and the names of these, by a `Schema`'s."""
    if container == BARE:
        return None, (None,)
    return (tuple, range(count)) if keys is None else (dict, keys)


def _in_their_places(padding: Any, fills: dict[Any, Any]) -> Any:
    """A caller's padding, where a dataset's fills tell more than a value: the side, or that there
    is none."""
    given = padding if isinstance(padding, dict) else dict.fromkeys(fills, padding)
    placed = {
        name: LAST if fills[name] is LAST else OnLeft(value)
        for name, value in given.items()
        if fills.get(name) is LAST or type(fills.get(name)) is OnLeft
    }
    return {**given, **placed} if placed else padding


def _checked(name: str, given: Any, check: Callable[[str, Any], Any]) -> Any:
    if isinstance(given, tuple):
        return tuple([check(name, value) for value in given])
    if isinstance(given, dict):
        return {key: check(name, value) for key, value in given.items()}
    return check(name, given)


def _flag(name: str, value: Any) -> bool:
    if value is None or value is False or value is True:
        return bool(value)
    raise TypeError(f"{name} must be True or False, or a tuple or a dict of these, not {value!r}")
