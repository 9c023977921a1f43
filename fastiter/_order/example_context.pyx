"""The example that this thread is fetching: for `fastiter.random.example_rng`, and for seeding
the global generators for each example.

The code that fetches examples sets a context, for its thread or once for a worker process. Nothing
is stored per example: when asked, the row is read off the loop that fetches.
"""

import random
import sys
import threading

cimport cython

import numpy

Seed = tuple[int, int]  # 128 bits

cdef object here = threading.local()
cdef object of_worker = None


cdef class ExampleContext:
    """Rows of one batch that this thread is fetching.

    ``counter.row`` is the current row. If one call fetches many, these are ``rows``, and ``turn``
    has the place of the current one among them, while `each` gives them one by one; else None.
    """

    cdef object seed, plan, counter
    cdef public object rows, turn

    def __init__(self, seed, plan, counter, rows=None):
        self.seed = seed
        self.plan = plan
        self.counter = counter
        self.rows = rows

    def run(self, function, *arguments):
        """Call ``function`` in this context.

        An interrupt is raised within the function or after this method, and so never leaves the
        context behind, as one within an ``__exit__`` of Python would.
        """
        before = getattr(here, "context", None)
        here.context = self
        try:
            return function(*arguments)
        finally:
            here.context = before

    cdef object row(self):
        """The current row; None within a call for many."""
        if self.rows is not None:
            return None if self.turn is None else self.rows[self.turn.place]
        return None if self.counter is None else self.counter.row

    def key(self):
        """Seed, epoch and dataset index of the current example; None within a call for many."""
        row = self.row()
        return None if row is None else (self.seed, *self.plan.key_of(row))

    def own_seed(self):
        """The seed of the current example; of the converter, if none is being fetched."""
        row = self.row()
        return memoryview(self.plan.seeds).cast("Q")[-1 if row is None else row]


def set_worker(writer):
    """Set the context of a worker process; ``writer`` has ``key()``."""
    global of_worker
    of_worker = writer
    here.context = None  # that of the thread that forked this process


def own_seed():
    """The seed of the current example, or of the converter that is called: 64 bits."""
    return current().own_seed()


def keep_generators(function, *arguments):
    """Call ``function``, and leave `random`, NumPy's and torch's global generators as they were.

    What saves and restores them is compiled: no signal handler runs in between.
    """
    generator = random.seed.__self__
    cdef object python = super(random.Random, generator)
    gauss, state = generator.gauss_next, python.getstate()
    numpys, torchs = numpy.random.get_state(legacy=False), None
    torch = getattr(sys.modules.get("torch"), "default_generator", None)
    if torch is not None:
        torchs = torch.get_state()
    try:
        return function(*arguments)
    finally:
        python.setstate(state)
        generator.gauss_next = gauss
        numpy.random.set_state(numpys)
        if torchs is not None:
            torch.set_state(torchs)


cdef object current():
    context = getattr(here, "context", None)
    return of_worker if context is None else context


cdef object of_many(n):
    """The context of one call for ``n`` examples, none of which is the current one; or None."""
    context = current()
    is_one = context is None or context.rows is None or context.turn is not None
    return None if is_one or len(context.rows) != n else context


@cython.auto_pickle(False)
cdef class CurrentRow:
    """The place of the current one among the examples of one call."""

    cdef readonly Py_ssize_t place


def each(values):
    """Iterate over the examples of one call for many; each is the current example in its turn.

    In a frame that an exception keeps, an iterator must not be left behind, as a comprehension of
    Python 3.11 does: it would end a later one's turn.
    """
    cdef CurrentRow turn
    context = of_many(len(values))
    if context is None:
        yield from values
        return
    context.turn = turn = CurrentRow()
    try:
        for value in values:
            yield value
            turn.place += 1
    finally:
        context.turn = None


def of_part(places, n, function, *arguments):
    """Call ``function``, which fetches by one call those of the ``n`` examples of the present one that
    have these places."""
    context = of_many(n)
    if context is None:
        return function(*arguments)
    rows, indices = context.rows, getattr(context, "indices", None)
    context.rows = [rows[place] for place in places]
    if indices is not None:
        context.indices = [indices[place] for place in places]
    try:
        return function(*arguments)
    finally:
        context.rows = rows
        if indices is not None:
            context.indices = indices


def current_key():
    """Seed, epoch and dataset index of the current example; None without one."""
    context = current()
    found = None if context is None else context.key()
    return None if found is None else (found[0], found[1], found[2] & 0xFFFFFFFFFFFFFFFF)


def key():
    """The same; RuntimeError without one."""
    found = current_key()
    if found is None:
        raise RuntimeError(
            "example_rng() without arguments works only in a dataset's __getitem__, or in the next() "
            "of an IterableDataset in fastiter.torch.DataLoader, while that example is fetched; in "
            "__getitems__, in a converter and elsewhere pass seed, epoch and index"
        )
    return found
