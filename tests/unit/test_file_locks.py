"""Locks of a file: who excludes whom, and that none is left behind."""

from __future__ import annotations

import os
import resource
import signal
import warnings
from collections.abc import Iterator

import pytest
from interrupts import interrupted_by_timer

from fastiter._clib.file_locks import FileLocks

WHAT = "this test"


@pytest.fixture
def fd() -> Iterator[int]:
    file = os.memfd_create("locks")
    yield file
    os.close(file)


def in_child(function: object) -> int:
    """Exit status of a forked child, 0 if the function returned True there."""
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(60)
        try:
            status = 0 if function() is True else 2  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_holds_share_or_exclude_each_other(fd: int) -> None:
    """Those of one object, and those of two objects in one process, alike."""
    one = FileLocks(fd, 8, WHAT)
    for other in (one, FileLocks(fd, 8, WHAT)):
        with one.hold() as a, other.hold() as b:
            assert a.take(3) and b.take(3) and a.take(3)
            assert not a.take(3, True) and not b.take(3, True)  # neither gives up its share
            b.close()
            assert a.take(3, True) and not b.take(3) and not b.take(3, True)
            assert b.take(4, True)
            assert a.take(3) and b.take(3)  # no longer alone
            a.release(3)
            assert not one.is_held(3) or other is one
            assert b.take(3, True)
        assert not one.is_held(3) and not other.is_held(4)
    with pytest.raises(IndexError, match="lock 8 of 8"):
        one.hold().take(8)


def test_a_hold_that_is_deleted_gives_back(fd: int) -> None:
    locks, others = FileLocks(fd, 40, WHAT), FileLocks(fd, 40, WHAT)
    hold, other = locks.hold(), others.hold()
    assert all(hold.take(number, number % 2 == 0) for number in range(40))
    assert not other.take(0)
    del hold
    assert all(other.take(number, True) for number in range(40))


def test_closing_a_duplicate_gives_up_nothing(fd: int) -> None:
    locks, others = FileLocks(fd, 2, WHAT), FileLocks(fd, 2, WHAT)
    hold = locks.hold()
    assert hold.take(0, True)
    os.close(os.dup(fd))
    assert not others.hold().take(0)
    assert in_child(lambda: not others.hold().take(0)) == 0


def test_a_forked_child_has_locks_of_its_own(fd: int) -> None:
    locks, others = FileLocks(fd, 2, WHAT), FileLocks(fd, 2, WHAT)
    hold = locks.hold()
    assert hold.take(0, True)

    def child() -> bool:
        assert not locks.is_own and not locks.is_held(0)
        hold.close()  # what it has is the parent's
        mine = locks.hold()
        assert not mine.take(0) and mine.take(1, True) and locks.is_own
        return not hold.take(0)

    assert in_child(child) == 0
    assert not others.hold().take(0)
    hold.close()
    assert others.hold().take(0, True) and others.hold().take(1, True)


def test_the_kernel_takes_back_what_a_killed_process_had(fd: int) -> None:
    locks = FileLocks(fd, 2, WHAT)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        hold = locks.hold()
        os.write(writer, b"y" if hold.take(1, True) else b"n")
        signal.pause()
    assert os.read(reader, 1) == b"y"
    hold = locks.hold()
    assert not hold.take(1)
    assert locks.holders(1) == [pid] and locks.holders(0) == []
    os.kill(pid, signal.SIGSTOP)  # one that is stopped keeps it
    assert not hold.take(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert hold.take(1, True)
    os.close(reader)
    os.close(writer)


def test_a_wait_for_a_lock_is_told_of_and_ends(fd: int) -> None:
    locks, told = FileLocks(fd, 2, WHAT), []
    hold = locks.hold()
    assert hold.take(1, True)

    def note(message: Warning | str, *_: object) -> None:
        told.append(str(message))
        hold.close()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        with locks.alone(1, "its turn", 0.01):
            assert locks.is_held(1)
    assert len(told) == 1 and " has waited 0 s for its turn, which others hold, " in told[0]
    assert not locks.is_held(1)

    with locks.hold() as other, warnings.catch_warnings():
        assert other.take(0, True)
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning), locks.alone(0, "its turn", 0.01):
            pass
    with locks.alone(0, "its turn"):
        assert locks.is_held(0)


def test_an_interrupt_leaves_no_lock(fd: int) -> None:
    locks, others = FileLocks(fd, 4, WHAT), FileLocks(fd, 4, WHAT)

    def hold_some() -> None:
        with locks.hold() as hold, locks.alone(0, "its turn"):
            hold.take(1)
            hold.take(2, True)
            hold.take(1, True)
            with locks.hold() as other:
                other.take(3)

    for _ in interrupted_by_timer(hold_some, 1000, 3e-4):
        assert not any(map(locks.is_held, range(4)))
    with others.hold() as hold:
        assert all(hold.take(number, True) for number in range(4))


def test_too_many_open_files_are_not_an_old_system(fd: int) -> None:
    def refused() -> bool:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 1, most))
        with pytest.raises(OSError) as error:
            FileLocks(fd, 8, WHAT)
        return str(error.value) == (
            "[Errno 24] this test needs locks of open file descriptions: Too many open files"
        )

    assert in_child(refused) == 0
