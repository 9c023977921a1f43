"""Rules of padding for each field of a batch, from the arguments of ``concat_examples``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fastiter._ring.schema import BARE, Schema


class FieldRule(NamedTuple):
    """What is done with one field. `concat` reads the first five by position."""

    fill: Any = None  #: fill value; None if all shapes must be equal
    max_length: int = -1  #: of the first axis; the rest is cut off. -1: no limit
    multiple: int = 1  #: the length of the padded first axis is rounded up to a multiple of it
    lengths: bool = False  #: whether the lengths of the first axis are returned, too
    named: str | None = None  #: the argument, if any, that asks for one of these for this field

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

    Parameters
    ----------
    padding, max_length, pad_to_multiple, return_lengths
        As in ``concat_examples``: one value for all fields, or one per field in a tuple or dict.

    Raises
    ------
    TypeError, ValueError
        If a length is not an integer of at least 1, a flag is not a bool, or a multiple has no
        padding.
    """

    def __init__(
        self,
        padding: Any = None,
        max_length: Any = None,
        pad_to_multiple: Any = None,
        return_lengths: Any = False,
    ) -> None:
        self.padding = padding
        self.max_length = _checked("max_length", max_length, _length)
        self.pad_to_multiple = _checked("pad_to_multiple", pad_to_multiple, _length)
        self.return_lengths = _checked("return_lengths", return_lengths, _flag)
        if padding is None and pad_to_multiple is not None:
            raise ValueError(
                f"pad_to_multiple={pad_to_multiple!r} pads nothing without a fill value: set "
                "padding, too"
            )
        self._options = {
            "max_length": self.max_length,
            "pad_to_multiple": self.pad_to_multiple,
            "return_lengths": self.return_lengths,
        }
        #: whether only fill values were given
        self.only_fills = max_length is None and pad_to_multiple is None and not return_lengths
        #: whether there is nothing to do, for any field
        self.is_none = self.only_fills and padding is None

    def __reduce__(self) -> tuple[Any, ...]:
        return Padding, (self.padding, *self._options.values())

    def for_tuple(self, count: int) -> tuple[FieldRule, ...]:
        """The rules of a tuple's fields.

        Raises
        ------
        IndexError, ValueError
            If there are values for other than these fields.
        """
        padding = self.padding
        fills = padding if isinstance(padding, tuple) else (padding,) * count
        if len(fills) < count:
            raise IndexError(f"padding has {len(fills)} entries for {count} fields: {padding!r}")
        for name, given in self._options.items():
            if isinstance(given, tuple) and len(given) != count:
                raise ValueError(f"{name} has {len(given)} entries for {count} fields: {given!r}")
            if isinstance(given, dict):
                raise ValueError(f"{name} is a dict, but the examples are tuples: {given!r}")
        return tuple([self._rule(number, fills[number], tuple) for number in range(count)])

    def for_dict(self, keys: Sequence[Any]) -> tuple[FieldRule, ...]:
        """The rules of a dict's fields.

        Raises
        ------
        KeyError, ValueError
            If padding, or another option, is given for other keys. A padding for all keys and for
            others, too, is accepted.
        """
        padding = self.padding
        fills = padding if isinstance(padding, dict) else dict.fromkeys(keys, padding)
        if not (fills.keys() <= set(keys) or fills.keys() >= set(keys)):
            raise KeyError(
                f"padding has entries for {list(fills)!r:.80}, which are not fields of the examples"
                f", {list(keys)!r:.80}"
            )
        for name, given in self._options.items():
            if isinstance(given, dict) and not given.keys() <= set(keys):
                raise ValueError(f"{name} has keys that the examples {list(keys)} lack: {given!r}")
            if isinstance(given, tuple):
                raise ValueError(f"{name} is a tuple, but the examples are dicts: {given!r}")
        return tuple([self._rule(key, fills.get(key), dict) for key in keys])

    def for_schema(self, schema: Schema) -> tuple[FieldRule, ...]:
        """The rules of the fields of a schema; raises what the other methods raise."""
        if schema.keys is not None:
            return self.for_dict(schema.keys)
        if schema.container == BARE:
            return (self.for_array(),)
        return self.for_tuple(len(schema.specs))

    def for_array(self) -> FieldRule:
        """The rule of examples that are neither tuples nor dicts.

        Raises
        ------
        ValueError
            If an option other than padding is given per field.
        """
        for name, given in self._options.items():
            if isinstance(given, (tuple, dict)):
                raise ValueError(f"{name} is given per field, but examples have none: {given!r}")
        return self._rule(None, self.padding, None)

    def _rule(self, field: Any, fill: Any, container: type | None) -> FieldRule:
        if self.only_fills:
            return FieldRule(fill)
        values: dict[str, Any] = {}
        named = None
        for name, given in self._options.items():
            value: Any = given
            if container is dict and isinstance(given, dict):
                value = given.get(field)
            elif container is tuple and isinstance(given, tuple):
                value = given[field]
            if value and (value is not given or container is None):
                named = name
            values[name] = value
        multiple = values["pad_to_multiple"]
        if multiple is not None and fill is None:
            if multiple is not self.pad_to_multiple:
                raise ValueError(
                    f"pad_to_multiple asks for a multiple of {multiple} in field {field!r}, which "
                    "has no fill value: give it one in padding"
                )
            multiple = None
        max_length = values["max_length"]
        return FieldRule(
            fill,
            -1 if max_length is None else max_length,
            multiple or 1,
            bool(values["return_lengths"]),
            named,
        )


def _checked(name: str, given: Any, check: Callable[[str, Any], Any]) -> Any:
    if isinstance(given, tuple):
        return tuple([check(name, value) for value in given])
    if isinstance(given, dict):
        return {key: check(name, value) for key, value in given.items()}
    return check(name, given)


def _length(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        length = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer or None, or a tuple or a dict of these, not {value!r}"
        ) from None
    if not 1 <= length < 1 << 40:
        raise ValueError(f"{name} must be from 1 to 2**40 - 1, not {length}")
    return length


def _flag(name: str, value: Any) -> bool:
    if value is None or value is False or value is True:
        return bool(value)
    raise TypeError(f"{name} must be True or False, or a tuple or a dict of these, not {value!r}")
