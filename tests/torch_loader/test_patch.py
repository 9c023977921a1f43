"""`patch` and `as_default`: programs that say torch's `DataLoader` get fastiter's."""

from __future__ import annotations

import abc
import copy
import inspect
import itertools
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

import fastiter.torch  # noqa: E402
from fastiter.datasets import StreamDataset  # noqa: E402
from fastiter.torch import Patch, as_default, patch  # noqa: E402

real = types.SimpleNamespace(DataLoader=torch_data.DataLoader)  # no global of the module


class Numbers(torch_data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index

    def shard(self, number: int) -> range:
        return range(8 * number, 8 * number + 8)


class Before(torch_data.DataLoader):
    """Derived from torch's class while that was in its place."""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of a program that has imported torch's class, also under another name."""
    module = types.ModuleType("a_program")
    code = "from torch.utils.data import DataLoader\nfrom torch.utils.data import DataLoader as L"
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, "a_program", module)
    return module


@pytest.fixture(autouse=True)
def _undone() -> Iterator[None]:
    yield
    assert torch_data.DataLoader is torch_data.dataloader.DataLoader is real.DataLoader
    assert "__reduce_ex__" not in vars(real.DataLoader)


def rows(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


def iterator_of(loader: Any) -> str:
    """The package of the class that iterates."""
    found = iter(loader)
    name = next(k.__module__ for k in type(found).__mro__ if "fastiter" in k.__module__ or k)
    return name.partition(".")[0]


def test_all_names_of_the_class_mean_fastiters_until_it_is_undone(program):
    with as_default() as patched:
        for kind in (program.DataLoader, program.L, torch_data.DataLoader):
            assert kind is not real.DataLoader
            assert issubclass(kind, fastiter.torch.DataLoader)
            assert kind.__name__ == "DataLoader"
        program.late = torch_data.DataLoader
        loader = program.L(Numbers(), 4, num_workers=1)
        assert iterator_of(loader) == "fastiter"
        assert patched.loaders == [loader]
    assert program.DataLoader is program.L is program.late is real.DataLoader
    assert rows(loader) == rows(real.DataLoader(Numbers(), 4))
    assert iterator_of(loader) == "fastiter"


def test_it_touches_no_other_name(program):
    program.kept, program.table = fastiter.torch.DataLoader, {"loader": real.DataLoader}
    before = dict(vars(program))
    with as_default():
        assert program.kept is fastiter.torch.DataLoader
        assert program.table == {"loader": real.DataLoader}
    assert vars(program) == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_patches_are_undone_in_any_order(program, order):
    patches = [patch(snapshot_every_n_steps=n + 1) for n in range(3)]
    assert program.DataLoader(Numbers()).snapshot_every_n_steps == 3
    left = {0, 1, 2}
    for number in order:
        assert program.DataLoader is not real.DataLoader
        patches[number].undo()
        patches[number].undo()
        left.discard(number)
        if left:
            assert program.DataLoader(Numbers()).snapshot_every_n_steps == max(left) + 1
    assert program.DataLoader is real.DataLoader


def test_an_exception_undoes_it(program):
    with pytest.raises(KeyError), as_default():
        raise KeyError
    assert program.DataLoader is real.DataLoader


def test_keywords_are_for_loaders_whose_caller_has_not_set_them(program):
    with as_default(seed_examples=True):
        assert program.DataLoader(Numbers()).seed_examples
        assert not program.DataLoader(Numbers(), seed_examples=False).seed_examples
    for name in ("batch_size", "in_order", "unknown"):
        with pytest.raises(TypeError, match=f"seed_examples.*not '{name}'"):
            patch(**{name: 1})
    for wrong in ({"on_error": "none"}, {"on_timeout": "retry"}, {"hedge": 2.0}, {"skip_limit": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            patch(**wrong)
    assert program.DataLoader is real.DataLoader


@pytest.mark.parametrize(
    ("keywords", "arguments"),
    [
        ({"hedge": 0.1}, {"num_workers": 1}),
        ({"dataset_timeout": 60.0, "on_timeout": "retry"}, {"num_workers": 1}),
        ({}, {"num_workers": "auto"}),
        ({}, {"dataset": StreamDataset(range(3), Numbers().shard)}),
        ({"on_error": "skip"}, {"dataset": StreamDataset(range(3), Numbers().shard)}),
    ],
    ids=["hedge", "retry", "auto", "stream", "skip of a stream"],
)
def test_arguments_of_workers_and_streams(program, keywords, arguments):
    arguments = {"dataset": Numbers(), "batch_size": 4, **arguments}
    with as_default(**keywords) as patched:
        loader = program.DataLoader(**arguments)
        found = [rows(loader), rows(loader)]
        assert [each["left_to_torch"] for each in patched.as_dict()["loaders"]] == [None]
    ours = fastiter.torch.DataLoader(**arguments, **keywords)
    assert found == [rows(ours), rows(ours)]


def test_it_looks_like_torchs_class(program):
    old = real.DataLoader(Numbers())
    with as_default():
        kind = program.DataLoader

        class OfInts(kind[int]):
            pass

        assert OfInts.__mro__[1] is kind
        assert list(inspect.signature(kind).parameters)[:5] == [
            *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
        ]
        assert isinstance(old, kind)
        assert isinstance(Before(Numbers()), kind)
        assert isinstance(kind(Numbers()), real.DataLoader)
        assert issubclass(Before, kind)
        assert not isinstance(Numbers(), kind)

        class Derived(kind):
            pass

        assert not isinstance(old, Derived)
        assert isinstance(Derived(Numbers()), kind)


def test_subclasses(program):
    class Looks(real.DataLoader):
        pass

    with as_default() as patched:
        assert iterator_of(Looks(Numbers(), num_workers=1)) == "torch"

        class Meanwhile(program.DataLoader):
            def __init__(self, *args, **kwargs):
                self.early = 1
                super().__init__(*args, **kwargs)

        class Own(program.DataLoader):
            def _get_iterator(self):
                return map(torch.neg, super()._get_iterator())

        assert iterator_of(Meanwhile(Numbers(), num_workers=1)) == "fastiter"
        own = Own(Numbers(), 8, num_workers=1)
        assert rows(own)[0][:3] == [0, -1, -2]
        found = [each["left_to_torch"] for each in patched.as_dict()["loaders"]]
        assert found == [None, f"{Own.__qualname__} overrides _get_iterator"]
        line = inspect.getsourcelines(test_subclasses)[1]
        assert all(each["file"] == __file__ for each in patched.as_dict()["loaders"])
        assert [each["line"] - line for each in patched.as_dict()["loaders"]] == [16, 17]


def test_a_class_of_before_that_calls_methods_of_its_base_by_name(program):
    class Old(real.DataLoader):
        def __init__(self, *args):
            program.DataLoader.__init__(self, *args)

        def __iter__(self):
            return program.DataLoader.__iter__(self)

        def __len__(self):
            return program.DataLoader.__len__(self)

        def _get_iterator(self):
            return program.DataLoader._get_iterator(self)

    old = Old(Numbers(), 8)
    with as_default() as patched:
        for loader in (old, Old(Numbers(), 8)):
            assert iterator_of(loader) == "torch"
            assert len(rows(loader)) == len(loader) == 3
        assert not patched.loaders


def test_abstract_subclasses(program):
    with as_default():

        class Abstract(program.DataLoader, abc.ABC):
            @abc.abstractmethod
            def name(self) -> str: ...

        class Named(Abstract):
            def name(self) -> str:
                return "named"

        loader = Named(Numbers(), 4)
        assert iterator_of(loader) == "fastiter"
        assert isinstance(loader, (Abstract, program.DataLoader))
        assert not isinstance(program.DataLoader(Numbers()), Abstract)
        assert isinstance(Before(Numbers()), program.DataLoader)
        assert not isinstance(Before(Numbers()), Abstract)
        assert not isinstance(Numbers(), program.DataLoader)
        with pytest.raises(TypeError, match="abstract"):
            Abstract(Numbers())


@runtime_checkable
class HasName(Protocol):
    def name(self) -> str: ...


def test_subclasses_that_are_generic_and_have_protocols_as_bases(program):
    item = TypeVar("item")
    with as_default():

        class Named(program.DataLoader[item], Generic[item]):
            def name(self) -> str:
                return "named"

        class Declared(Named[int], HasName):
            pass

        for kind in Named, Named[int], Declared:
            loader = kind(Numbers(), 4)
            assert iterator_of(loader) == "fastiter"
            assert isinstance(loader, HasName) and isinstance(loader, program.DataLoader)
        assert issubclass(Declared, HasName) and issubclass(Declared, Named)
        assert not isinstance(program.DataLoader(Numbers()), (HasName, Declared))


def test_a_subclass_has_a_metaclass_of_its_own(program):
    class Registering(abc.ABCMeta):
        names = ()

        def __init__(cls, name: str, *arguments: Any) -> None:
            super().__init__(name, *arguments)
            Registering.names += (name,)

    with as_default():

        class Registered(program.DataLoader, metaclass=Registering):
            pass

        assert iterator_of(Registered(Numbers(), 4)) == "fastiter"
        assert Registering.names == ("Registered",)
        assert not isinstance(Before(Numbers()), Registered)
        assert isinstance(Registered(Numbers()), program.DataLoader)


def test_a_class_without_a_hash(program):
    with as_default() as patched:

        class Equal(program.DataLoader):
            def __eq__(self, other):
                return True

        loader = Equal(Numbers())
        other = Equal(Numbers())
        assert [each is loader for each in patched.loaders] == [True, False]
        del other
        assert len(patched.loaders) == 1


class Repeats:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def test_a_class_that_reads_one_iterator_for_ever(program):
    with as_default():

        class Infinite(program.DataLoader):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                object.__setattr__(self, "batch_sampler", Repeats(self.batch_sampler))
                self.iterator = super().__iter__()

            def __len__(self):
                return len(self.batch_sampler.sampler)

            def __iter__(self):
                for _ in range(len(self)):
                    yield next(self.iterator)

        loader = Infinite(Numbers(), 8, num_workers=2)
        first = loader.iterator
        assert [rows(loader) for _ in range(3)] == 3 * [rows(real.DataLoader(Numbers(), 8))]
        assert loader.iterator is first
        assert "fastiter" in type(first).__module__


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_loaders_of_each_class_are_copied_and_pickled(program, copied):
    before = real.DataLoader(Numbers(), 8)
    with as_default() as patched:
        meanwhile = program.DataLoader(Numbers(), 8, num_workers=1)
        assert rows(meanwhile) == rows(before)
        for loader in (before, Before(Numbers(), 8), meanwhile):
            other = copied(loader)
            assert type(other) is type(loader)
            assert rows(other) == rows(before)
        assert len(patched.as_dict()["loaders"]) == 1
    assert rows(copied(meanwhile)) == rows(copied(before)) == rows(before)


@pytest.mark.parametrize("left_to_torch", [False, True])
def test_copies_of_a_class_with_a_state_of_its_own(program, left_to_torch):
    """As with torch's class, also after a loop; they begin anew, and are in no report."""
    with as_default() as patched:

        class Own(program.DataLoader):
            def __getstate__(self) -> dict[str, Any]:
                return self.__dict__

        loader = Own(Refused() if left_to_torch else Numbers(), 4)
        expected = rows(loader)
        copies = [copy.copy(loader), copy.deepcopy(loader)]
        for made in copies:
            assert type(made) is Own
            assert rows(made) == expected
        (figures,) = patched.as_dict()["loaders"]
        assert (figures["left_to_torch"] is not None) == left_to_torch
        assert (figures["epochs"], figures["batches"]) == (1, 6)
        assert left_to_torch or [made.stats().batches for made in copies] == [6, 6]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_only_its_loop_holds_is_counted(program, workers):
    with as_default() as patched:
        batches = [iter(program.DataLoader(Numbers(), 4, num_workers=workers)) for _ in range(2)]
        assert [len(next(one)) for one in batches] == [4, 4]
        assert patched.loaders == []
        assert [each["batches"] for each in patched.as_dict()["loaders"]] == [1, 1]
        assert len([*batches.pop()]) == 5
        assert [each["batches"] for each in patched.as_dict()["loaders"]] == [1, 6]
        for _ in program.DataLoader(Numbers(), 4, num_workers=workers):
            pass
    assert [each["batches"] for each in patched.as_dict()["loaders"]] == [1, 6, 6]


class Refused(Numbers):
    """fastiter asks for its columns when an iteration begins; torch does not."""

    def __fastiter_columns__(self) -> Any:
        raise ArithmeticError("no columns here")


class RefusedAtOnce(torch_data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_fastiter_alone_refuses_is_left_to_torch(program, workers):
    expected = []
    for kind in (real.DataLoader, None):
        with as_default(seed_examples=True) as patched:
            torch.manual_seed(3)
            made = [
                (kind or program.DataLoader)(Refused(), 4, shuffle=True, num_workers=workers),
                (kind or program.DataLoader)(RefusedAtOnce(), 4, num_workers=workers and 1),
            ]
            found = [rows(loader) for loader in made for _ in range(2)], torch.rand(1).item()
            expected.append(found)
            reasons = [each["left_to_torch"] for each in patched.as_dict()["loaders"]]
    assert expected[0] == expected[1]
    assert reasons[0] == "ArithmeticError: no columns here"
    assert reasons[1].startswith("ValueError: seed_examples=True needs a dataset with __getitem__")
    counts = [(each["epochs"], each["batches"]) for each in patched.as_dict()["loaders"]]
    assert counts == [(2, 12), (2, 12)]
    assert "left to torch: ArithmeticError: no columns here" in patched.report()
    with pytest.warns(UserWarning, match="has no state: ArithmeticError: no columns here"):
        state = made[0].state_dict()
    assert state == {}
    made[0].load_state_dict(state)
    with pytest.raises(RuntimeError, match="has no state: ArithmeticError: no columns here"):
        made[0].load_state_dict({"a": 1})


def test_loaders_of_programs_that_replace_parts_of_torchs(
    program: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterators = torch_data.dataloader._SingleProcessDataLoaderIter
    given = iterators._next_data
    monkeypatch.setattr(iterators, "_next_data", lambda iterator: -given(iterator))
    with as_default() as patched:
        loader = program.DataLoader(range(4), 2)
        for n_loops in range(2):
            with pytest.warns(UserWarning, match=r"no state: .*replaced .*_SingleProcess"):
                assert loader.state_dict() == {}
            loader.load_state_dict({})
            assert rows(loader) == [[0, -1], [-2, -3]]
            loops = patched.as_dict()["loaders"][0]
            assert loops["epochs"] == n_loops + 1
            assert "_SingleProcess" in loops["left_to_torch"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": -1},
        {"prefetch_factor": 2},
        {"unknown": 1},
        {"timeout": -1},
        {"sampler": [1], "shuffle": 1},
    ],
    ids=str,
)
def test_what_torch_refuses_raises_its_error(program, arguments):
    with as_default() as patched:
        found = []
        for kind in (real.DataLoader, program.DataLoader):
            with pytest.raises((ValueError, TypeError)) as caught:
                kind(Numbers(), **arguments)
            found.append((type(caught.value), str(caught.value), caught.value.__context__))
        assert found[0] == found[1]
        assert not patched.loaders
        with pytest.raises(ValueError, match="seed_examples=True needs"):
            program.DataLoader(RefusedAtOnce(), seed_examples=True)


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_and_random_numbers_are_torchs(program, persistent):
    found = []
    for kind in (real.DataLoader, None):
        with as_default():
            torch.manual_seed(7)
            loader = (kind or program.DataLoader)(
                *(Numbers(), 5), shuffle=True, num_workers=2, persistent_workers=persistent
            )
            found.append([[rows(loader) for _ in range(3)], torch.rand(2).tolist()])
    assert found[0] == found[1]


def test_figures(program):
    with as_default() as patched:
        for _ in range(2):
            loader = program.DataLoader(Numbers(), 6, num_workers=1)
            n_batches = [len(rows(loader)) for _ in range(3)]
            assert n_batches == [4, 4, 4]
        del loader
        assert patched.loaders == []
        loaders = patched.as_dict()["loaders"]
    assert {(each["epochs"], each["batches"]) for each in loaders} == {(3, 12)}
    assert all(0 < each["wait_seconds"] <= each["seconds"] for each in loaders)
    assert [each["num_workers"] for each in loaders] == [1, 1]
    first, place, *_ = patched.report().split("\n")
    assert first.startswith("fastiter: 2 loaders, 0 ")
    assert f"{__file__}:{loaders[0]['line']}  DataLoader, 2 made: 6 epochs, 24 batches" in place


def test_figures_of_a_subclass_that_keeps_its_iterator(program):
    with as_default() as patched:

        class Kept(program.DataLoader):
            kept = None

            def __iter__(self):
                self.kept = self.kept or self._get_iterator()
                for _ in range(2):
                    yield next(self.kept)

        loader = Kept(Numbers(), 6)
        assert rows(loader) + rows(loader) == rows(real.DataLoader(Numbers(), 6))
    assert "Kept, 1 made: 4 batches, " in patched.report()


def test_an_environment_variable_leaves_everything_to_torch(program, monkeypatch):
    monkeypatch.setenv("FASTITER_RUN", "0")
    with as_default() as patched:
        assert program.DataLoader is real.DataLoader
        assert patched.as_dict() == {"loaders": []}


def test_a_loop_from_a_loaded_state_is_fastiters_where_classes_take_turns(program):
    expected = rows(real.DataLoader(Numbers(), 4))
    patched = Patch({}, compares=True)
    loader = program.DataLoader(Numbers(), 4, num_workers=1)
    batches = iter(loader)
    first = [next(batches).tolist() for _ in range(2)]
    state = loader.state_dict()
    del batches
    assert rows(loader) == expected  # torch's turn
    with pytest.warns(UserWarning, match="it is torch's turn"):
        assert loader.state_dict() == {}
    assert rows(loader) == expected
    loader.load_state_dict(state)
    assert first + rows(loader) == expected
    assert "x, of too few loops" in patched.report()  # one of torch's
    patched.undo()
