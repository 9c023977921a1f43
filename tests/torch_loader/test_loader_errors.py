"""Errors of datasets, and workers that are killed: as with torch's own loader."""

from __future__ import annotations

import errno
import os
import signal
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from datasets_of import Dataset, N, Stream  # noqa: E402

from fastiter.errors import DatasetError  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")


def lacking(index):
    if index == 7:
        raise KeyError(f"no row {index}")
    return index


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one, two)


def odd(index):
    raise Odd(1, 2)


def keys_until_an_error():
    yield from range(5)
    raise ValueError("no key 5")


class Keys:
    def __iter__(self):
        return keys_until_an_error()


@pytest.mark.parametrize("batch_size", [2, None])
def test_an_error_of_the_sampler_ends_the_epoch_with_whole_batches(batch_size):
    found = []
    for loader_class in (torch_data.DataLoader, DataLoader):
        iterator = iter(loader_class(Dataset(abs), batch_size=batch_size, sampler=Keys()))
        given = []
        with pytest.raises(ValueError, match="no key 5"):
            given.extend(iterator)
        given.extend(iterator)
        found.append([batch.tolist() if batch_size else batch for batch in given])
    assert found[0] == found[1]


@pytest.mark.parametrize("function", [lacking, odd])
@pytest.mark.parametrize("batch_size", [2, None])
def test_errors_of_the_dataset(function, batch_size):
    found = []
    for loader_class in (torch_data.DataLoader, DataLoader):
        loader = loader_class(Dataset(function), batch_size=batch_size, num_workers=1)
        with pytest.raises(Exception) as caught:
            list(loader)
        found.append((type(caught.value), str(caught.value)))
    assert found[0][0] is found[1][0]
    first_lines = [text.splitlines()[0] for _, text in found]
    assert first_lines[0] == first_lines[1]
    last_lines = [text.strip().splitlines()[-1] for _, text in found]
    assert last_lines[0] in found[1][1], last_lines


class NoFile(FileNotFoundError):
    name = property(lambda self: self.path)  # refuses to be set


def without_a_file(index):
    if index in (3, 90):
        error = NoFile(errno.ENOENT, "no file")
        error.path = f"{index}.jpg"
        if index == 3:
            vars(error)["name"] = "hidden"
            error.handle = threading.Lock()  # which is not sent
        raise error
    return index


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("first", [0, 50])  # in a batch that is made as a whole, and in a row
def test_errors_keep_attributes(num_workers, first):
    order = range(first, 100)
    loader = DataLoader(Dataset(without_a_file, 100), 5, sampler=order, num_workers=num_workers)
    with pytest.raises(OSError, match="no file") as caught:
        list(loader)
    assert caught.value.path == caught.value.name == ("90.jpg" if first else "3.jpg")
    assert caught.value.errno == errno.ENOENT


def test_the_error_of_columns_is_that_of_whole_batches():
    """The failing example comes when its rows are written into columns."""
    dataset = Dataset(lambda i: 1 / (i - 100), 300)
    loader = DataLoader(dataset, batch_size=5, num_workers=1)
    with pytest.raises(
        ZeroDivisionError,
        match=r"(?s)Caught ZeroDivisionError in DataLoader "
        r"worker process 0.*Original Traceback.*ZeroDivisionError",
    ):
        list(loader)


@pytest.mark.parametrize("place", [0, 8])
@pytest.mark.parametrize("workers", [0, 1])
def test_misfits_are_named(place, workers):
    """torch's message, and which example."""
    shapes = {place * 5 + 3: (4,)}
    dataset = Dataset(lambda i: (torch.zeros(shapes.get(i, (3,))), i), 60)
    loader = DataLoader(dataset, batch_size=5, num_workers=workers)
    text = rf"stack expects each tensor to be equal size.*dataset index {place * 5 + 3}\)"
    with pytest.raises(RuntimeError, match=f"(?s){text}"):
        list(loader)


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        (torch.zeros(3), torch.zeros(4)),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(3)}),
        (torch.zeros(3, dtype=torch.int64), torch.zeros(3)),
        (torch.zeros(()), 1.0),
        (1.0, "a"),
        (1.0, None),
        ({"a": 1.0, "b": 2}, {"a": 1.0}),
        ((1.0, 2), (1.0,)),
        ({"a": 1.0}, (1.0,)),
    ],
    ids=["shape", "in a dict", "dtype", "number", "text", "None", "key", "size", "container"],
)
def test_errors_of_examples_that_do_not_fit_the_columns_are_torchs(usual, odd):
    """Such rows are collated in the program's process."""
    found = []
    for loader_class in (torch_data.DataLoader, DataLoader):
        dataset = Dataset(lambda i: odd if i == 43 else usual, 60)
        with pytest.raises(Exception) as caught:
            list(loader_class(dataset, 5, num_workers=1))
        first, second, *_, last = str(caught.value).strip().splitlines()
        found.append((type(caught.value), first, second, last))
    assert found[0][:3] == found[1][:3]
    assert found[0][3].partition(": ")[2] in found[1][3] and "dataset index 43)" in found[1][3]


class Unloadable:
    def __reduce__(self):
        return int, ("no number",)


def test_an_example_that_does_not_load_is_named_by_its_batch():
    dataset = Dataset(lambda i: Unloadable() if i == 9 else i, 12)
    iterator = iter(DataLoader(dataset, 4, num_workers=1, collate_fn=list))
    assert [next(iterator), next(iterator)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(RuntimeError, match=r"in the parent: .*no number.* \(the batch of \[8, 9, "):
        next(iterator)
    assert not [*iterator]


def test_a_killed_worker_loses_nothing(tmp_path):
    """torch's loader raises RuntimeError."""

    def once(index):
        if index == 40 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((3,), index)

    loader = DataLoader(Dataset(once, 100), batch_size=5, num_workers=2)
    assert torch.equal(torch.cat(list(loader))[:, 0], torch.arange(100))
    assert (tmp_path / "killed").exists()


def test_a_killed_worker_of_a_stream_loses_nothing(tmp_path, caplog):
    class Fragile(Stream):
        def __iter__(self):
            for i, example in enumerate(super().__iter__()):
                if i == 9 and not (tmp_path / "killed").exists():
                    (tmp_path / "killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield example

    expected = list(torch_data.DataLoader(Stream(60), batch_size=4, num_workers=2))
    found = list(DataLoader(Fragile(60), batch_size=4, num_workers=2))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (tmp_path / "killed").exists()
    assert [record.message for record in caplog.records if "reads its part again" in record.message]


def test_a_killed_worker_of_a_dataset_with_a_state_is_told(tmp_path, caplog):
    class Counting(Dataset):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    def once(index):
        if index == 9 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    assert torch.cat(list(DataLoader(Counting(once), 4, num_workers=1))).tolist() == [*range(N)]
    assert [record.message for record in caplog.records if "has died" in record.message]


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_stream_that_kills_its_workers_is_named_by_its_batch(batch_size):
    class Deadly(Stream):
        def __iter__(self):
            yield from range(batch_size or 1)
            os._exit(3)

    iterator = iter(DataLoader(Deadly(60), batch_size, num_workers=1))
    next(iterator)
    with pytest.raises(RuntimeError, match="epoch 0, batch 1 has killed"):
        next(iterator)


def leave(number):
    raise SystemExit(f"worker {number} leaves")


def test_a_worker_init_fn_that_ends_the_worker_is_named():
    """As in torch, an Exception that it raises is raised by the first batch."""
    told = r"worker 0 leaves.* \(loading the dataset or worker_init_fn, worker process \d+\)"
    with pytest.raises(DatasetError, match=told):
        list(DataLoader([0], num_workers=1, worker_init_fn=leave))


def end_at_once(number):
    os._exit(3)


def test_workers_that_die_again_in_the_next_loop_are_told_in_torchs_words():
    loader = DataLoader([0], num_workers=1, worker_init_fn=end_at_once, persistent_workers=True)
    torchs = r"^DataLoader worker \(pid \d+\) exited unexpectedly"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=torchs):
            list(loader)


def five_does_not_pickle(rows):
    return (lambda: None) if 5 in rows else rows


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"collate_fn": five_does_not_pickle}, Exception, "pickle"),
        ({"raised": StopIteration}, RuntimeError, "(?m)^StopIteration was raised by the dataset"),
        ({"raised": StopIteration}, RuntimeError, r"\nOriginal Traceback.*\n"),
        ({"raised": SystemExit}, DatasetError, "in __getitem__"),
    ],
    ids=["does not pickle", "StopIteration", "its traceback", "SystemExit"],
)
def test_the_loop_goes_on_after_errors_that_end_torchs(arguments, error, text):
    def example(i):
        if i == 5 and "raised" in arguments:
            raise arguments["raised"]
        return i

    collate_fn = arguments.get("collate_fn", list)
    iterator = iter(DataLoader(Dataset(example, 12), 4, num_workers=1, collate_fn=collate_fn))
    assert next(iterator) == [0, 1, 2, 3]
    with pytest.raises(error, match=text):
        next(iterator)
    assert list(iterator) == [[8, 9, 10, 11]]


def test_a_stop_iteration_without_workers_ends_no_epoch():
    def example(i):
        return next(iter(())) if i == 5 else i

    iterator = iter(DataLoader(Dataset(example, 12), 4, collate_fn=list))
    assert next(iterator) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=r"StopIteration\(\) was raised by the dataset"):
        next(iterator)
    assert list(iterator) == [[8, 9, 10, 11]]


class Gives(Dataset):
    def __getitems__(self, indices):
        return self.function(indices)


@pytest.mark.parametrize("loader_class", [torch_data.DataLoader, DataLoader])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_of_examples_that_getitems_gives(loader_class, num_workers):
    """Of no examples, and of a misfit that has no key."""
    for given, text in ((None, "not subscriptable"), ([1, 2, "text"], "text|str")):
        with pytest.raises((TypeError, ValueError), match=text):
            list(
                loader_class(Gives(lambda indices, given=given: given), 2, num_workers=num_workers)
            )


class Ragged(torch_data.IterableDataset):
    def __iter__(self):
        return iter([[1], [2], [3], [4, 5]])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_of_the_examples_of_a_stream_name_no_index(num_workers):
    with pytest.raises(RuntimeError, match=r"equal size \(example 1 of the batch\)"):
        list(DataLoader(Ragged(), 2, num_workers=num_workers))


class CodeError(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code


@pytest.mark.parametrize("loader_class", [torch_data.DataLoader, DataLoader])
def test_exceptions_of_functions_that_a_program_registers(loader_class, monkeypatch):
    def fail(batch, *, collate_fn_map=None):
        raise CodeError(7)

    monkeypatch.setitem(torch_data._utils.collate.default_collate_fn_map, int, fail)
    with pytest.raises(CodeError) as caught:
        list(loader_class(range(4), 2))
    assert caught.value.code == 7


def test_a_fork_of_the_program_is_told_to_make_a_new_loader():
    loader = DataLoader(range(8), 2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    pid = os.fork()
    if not pid:
        try:
            next(iterator)
        except RuntimeError as error:
            new = DataLoader(range(8), 2, num_workers=1)
            is_right = "over a new DataLoader" in str(error) and len(list(new)) == 4
            os._exit(7 if is_right else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert len(list(iterator)) == 4


# ---- exceptions of any class --------------------------------------------------------------------


def made_locally(base: type[Exception]) -> type[Exception]:
    class LocalError(base):  # type: ignore[misc,valid-type]
        pass

    return LocalError


class TwoArgumentsError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class KeywordError(ValueError):
    def __init__(self, *, message: str) -> None:
        super().__init__(message)


class UnloadableError(Exception):
    def __reduce__(self) -> Any:
        return int, ("no number",)


class UnpicklableError(OSError):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("it does not pickle")


class NoTextError(Exception):
    def __str__(self) -> str:
        raise ValueError("it has no text")


class MessageError(Exception):
    """As ExceptionGroup: it has a message, and takes none by this name."""

    message = "is there"

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)


class HoldsLockError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


EXCEPTIONS = {
    "KeyError": lambda: KeyError("the text"),
    "FileNotFoundError": lambda: FileNotFoundError(2, "No such file", "the text"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf8", b"a", 0, 1, "the text"),
    "several arguments": lambda: TwoArgumentsError("the", "text"),
    "keyword": lambda: KeywordError(message="the text"),
    "unloadable": lambda: UnloadableError("the text"),
    "unpicklable": lambda: UnpicklableError("the text"),
    "holds a lock": lambda: HoldsLockError("the text"),
    "str raises": lambda: NoTextError("the text"),
}
LocalError = made_locally(Exception)
LocalLookupError = made_locally(LookupError)
LOCAL = {  # torch's loader waits for ever
    "local": (lambda: LocalError("the text"), DatasetError),
    "local LookupError": (lambda: LocalLookupError("the text"), LookupError),
    # torch raises a TypeError of the class' own, without the text.
    "message": (lambda: MessageError("the text", 3), RuntimeError),
}


class Failing(torch_data.Dataset):
    def __init__(self, make: Any, index: int) -> None:
        self.make, self.index = make, index

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == self.index:
            raise self.make()
        return index


def raised(loader_class: Any, make: Any, index: int, **arguments: Any) -> tuple[Exception, int]:
    """The error of an epoch, and the number of batches besides."""
    iterator = iter(loader_class(Failing(make, index), 2, **arguments))
    batches, errors = 0, []
    while True:
        try:
            next(iterator)
            batches += 1
        except StopIteration:
            break
        except Exception as error:
            errors.append(error)
    (error,) = errors
    return error, batches


def text_of(error: Exception) -> str:
    try:
        return str(error)
    except ValueError:
        return ""


@pytest.mark.parametrize("name", EXCEPTIONS)
@pytest.mark.parametrize("index", [0, 9])
@pytest.mark.parametrize("collate_fn", [None, list], ids=["default", "own"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_exceptions_are_of_torchs_type_and_have_the_text(
    name: str, index: int, collate_fn: Any, num_workers: int
) -> None:
    arguments = {"collate_fn": collate_fn, "num_workers": num_workers}
    expected, found = (
        raised(loader_class, EXCEPTIONS[name], index, **arguments)
        for loader_class in (torch_data.DataLoader, DataLoader)
    )
    assert type(found[0]) is type(expected[0])
    assert found[1] == expected[1] == 5
    if name != "str raises":
        assert "the text" in text_of(found[0])
        for part in ("Caught ", " in DataLoader worker process 0.\nOriginal Traceback", "getitem"):
            assert (part in text_of(found[0])) == (part in text_of(expected[0])) == num_workers


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("index", [0, 9])
@pytest.mark.parametrize("collate_fn", [None, list], ids=["default", "own"])
def test_exceptions_that_torch_cannot_tell_of(name: str, index: int, collate_fn: Any) -> None:
    make, kind = LOCAL[name]
    error, batches = raised(DataLoader, make, index, collate_fn=collate_fn, num_workers=1)
    assert type(error) is kind and batches == 5
    for part in ("the text", "in DataLoader worker process 0.\nOriginal Trace", "__getitem__"):
        assert part in str(error)


class Unread(dict):
    """An example that is read as it is collated, and raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__(a=0)
        self.error = error

    def __getitem__(self, key: str) -> Any:
        raise self.error


@pytest.mark.parametrize("num_workers", [0, 1])
def test_collation_keeps_what_an_exception_has(num_workers: int) -> None:
    for loader_class in (torch_data.DataLoader, DataLoader):
        error = FileNotFoundError(errno.ENOENT, "no file", "a.txt")
        with pytest.raises(FileNotFoundError, match="no file") as caught:
            list(loader_class([Unread(error)] * 3, 3, num_workers=num_workers))
        if num_workers == 0:
            assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "a.txt")
        noted = ValueError("no text")
        noted.path = "a.txt"
        with pytest.raises(ValueError, match="no text") as caught:
            list(loader_class([Unread(noted)] * 3, 3, num_workers=num_workers))
        if num_workers == 0 or loader_class is DataLoader:
            assert caught.value.path == "a.txt"


def test_tracebacks_have_line_numbers() -> None:
    for num_workers in (0, 1):
        error, _ = raised(DataLoader, EXCEPTIONS["KeyError"], 3, num_workers=num_workers)
        entry = error.__traceback__
        while entry is not None:
            assert type(entry.tb_lineno) is int
            entry = entry.tb_next
