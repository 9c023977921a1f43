from typing import Any, Protocol

class _Permutes(Protocol):
    def permutation(self, n: int, /) -> Any: ...

def permutation(random_state: _Permutes | None, n: int) -> Any:
    """Return the order that ``random_state.permutation(n)`` gives, and leave the same state behind.

    Parameters
    ----------
    random_state
        `None` is NumPy's global state. For a `numpy.random.RandomState` (exactly that class) the
        order is drawn in C, with the bit generator's lock held and the GIL released. Of any other
        object the method ``permutation`` is called.
    n
        Length of the order.

    Returns
    -------
    order
        int64 array (n,), the caller's own; of other objects what their ``permutation`` returns.
    """
