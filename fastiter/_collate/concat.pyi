from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

__pyx_capi__: dict[str, Any]

def stack(examples: Iterable[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Join the examples of a batch, or one field of all its examples, into one array.

    Takes any examples, and gives what ``concat_examples`` without padding gives for NumPy arrays
    and numbers. If the first example is an array (a subclass counts), that is
    ``numpy.concatenate([e[None] for e in examples])``, so mixed dtypes are promoted; otherwise it
    is ``numpy.asarray(examples)``, its rows joined in the same way. A list example is one array
    and not a sequence of fields.

    Exact, C-contiguous arrays of one plain dtype (bool, numbers, datetime64, timedelta64, bytes,
    str) and one shape are copied once each, and the GIL is released if they are 64 KiB or more in
    all; `int`, `float`, `bool` and NumPy scalars of one exact type are read without being boxed.

    Parameters
    ----------
    examples
        At least one; read once, before anything of it is called.
    out
        C-contiguous or not, but of exactly the shape and dtype of the result; written and returned
        instead of a new array. Its content after an error is undefined.

    Raises
    ------
    ValueError
        `examples` is empty; the shapes differ; `out` does not fit.
    TypeError
        `out` is no array; the examples cannot be joined, such as str or None.
    """

def pad_stack(arrays: Iterable[Any], fill: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Join arrays of different shapes into one, the rest of each row being the fill value.

    Takes any examples, and gives what ``concat_examples`` with padding gives for NumPy arrays and
    numbers. The dtype is the first array's; later ones are cast to it as by an assignment; `fill`
    is cast as by ``numpy.full`` of the NumPy that runs, but a float that an integer dtype has no
    value near to (NaN, infinite, out of range) is an error. If the first example is no array, the
    examples are those of ``numpy.asarray(arrays)``.

    Exact, C-contiguous arrays of one bool or number dtype, in any byte order, with one number of
    dimensions, and a number as `fill`, are written in one pass, each output byte once, and with
    the GIL released if the result is 64 KiB or more.

    Parameters
    ----------
    arrays
        At least one, of the same number of dimensions.
    fill
        Usually a number; what ``numpy.full`` takes.
    out
        Of exactly the shape and dtype of the result; as for `stack`.

    Returns
    -------
    array
        C-contiguous, of shape (number of arrays, elementwise maximum of their shapes).

    Raises
    ------
    ValueError
        `arrays` is empty; the numbers of dimensions differ; `out` does not fit; `fill` has no
        value in the dtype.
    """

def join_batch(batch: Any, copy: bool) -> Any:
    """Join a list or tuple of plain examples, field by field, without padding.

    Without `copy` fields that lie in shared memory, of which a column may be had, are not joined.

    Returns
    -------
    array, tuple of arrays, dict of arrays, or None
        None if any field is not one for the fast ways: see `join_fields`.
    """

def join_fields(
    batch: Sequence[Any],
    names: tuple[Any, ...] | None,
    rules: tuple[tuple[Any, int, int, bool, str | None], ...],
    copy: bool,
) -> list[Any]:
    """Join each field of a batch of plain examples, as far as the fast ways go.

    Parameters
    ----------
    batch
        At least one example; for the fast ways a list or tuple of tuples that have at least these
        fields, or of dicts that have just these keys in this order.
    names
        The keys of dicts, the numbers of a tuple's fields; None if each example is one field.
    rules
        Per field a ``FieldRule``.
    copy
        Whether fields in a batch's shared memory are joined, too, rather than left to a hand-over.

    Returns
    -------
    list
        Per field an array, a pair of array and lengths if the rule asks for these, or None if the
        field is not one for the fast ways, whatever the reason: unlike examples, other objects than
        NumPy arrays and numbers, arrays in a batch's shared memory, shapes that do not fit.
    """
