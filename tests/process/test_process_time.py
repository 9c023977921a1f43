"""Waiting: timeouts, stopped workers, Ctrl-C, and finalize from elsewhere."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings

import pytest
from examples_of import Blocks, Gated, Numbered, SlowToLoad
from inside import have_begun, pids_of, pool_of, ring_of
from outside import HANG, is_alive, later, run_script, sleeps, wait_until
from warned import make_warnings_errors

from fastiter import MultiprocessIterator

TimeoutWarning = MultiprocessIterator.TimeoutWarning


def begun(iterator):
    """Its start is over, which takes some time, too."""
    iterator.start()
    wait_until(lambda: have_begun(iterator), "the workers have begun")
    return iterator


def test_the_warning_says_all(make, tmp_path):
    gate = tmp_path / "gate"
    iterator = make(Gated(16, {5}, gate), 4, dataset_timeout=0.2)
    assert next(iterator) == [0, 1, 2, 3]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def open_the_gate():
            wait_until(lambda: len(caught) >= 3, "three warnings")
            gate.touch()

        with later(open_the_gate):
            assert next(iterator) == [4, 5, 6, 7]
    seconds = []
    for warning in caught:
        assert warning.category is TimeoutWarning
        text = str(warning.message)
        assert re.search(r"\bindex 5\b", text)
        assert "dataset_timeout=0.2" in text
        assert "epoch 0, batch 1" in text
        assert any(f"worker process {pid}" in text for pid in pids_of(iterator))
        assert "in __getitem__" in text
        assert "examples_of.py" in text
        seconds.append(float(re.search(r"for (\d+\.\d) s", text)[1]))
        assert warning.filename == __file__
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0.2
    assert seconds[2] >= 0.6
    assert next(iterator) == [8, 9, 10, 11]


def test_a_dataset_that_does_not_load_is_named(make, tmp_path):
    gate = tmp_path / "gate"
    iterator = make(SlowToLoad(8, gate), 4, dataset_timeout=0.2, context="spawn", n_processes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TimeoutWarning)
        while not (tmp_path / "gate.loading").exists():  # it imports, which is loading too
            with pytest.raises(TimeoutWarning, match=r"been (starting|loading) for \d+\.\d s"):
                next(iterator)
        with pytest.raises(TimeoutWarning, match=r"(?s)been loading for .*in __setstate__"):
            next(iterator)
    gate.touch()
    assert [int(x[0]) // 64 for x in next(iterator)] == [0, 1, 2, 3]


def test_the_warning_as_an_error_loses_nothing(make, tmp_path):
    gate = tmp_path / "gate"
    iterator = begun(make(Gated(16, {0, 9}, gate), 4, dataset_timeout=0.1))
    got = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", TimeoutWarning)
        for _ in range(3):
            with pytest.raises(TimeoutWarning, match="index 0"):
                next(iterator)
            assert iterator.current_position == 0
        gate.touch()
        while len(got) < 4:
            got.append(next(iterator))
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


class Converter:
    def __init__(self, gate):
        self.gate = gate

    def __call__(self, batch, device=None):
        wait_until(self.gate.exists, "the gate opens")
        return batch


def test_a_converter_that_takes_long_is_named(make, tmp_path):
    gate = tmp_path / "gate"
    converter = Converter(gate)
    iterator = begun(make(range(8), 4, dataset_timeout=0.2, n_processes=1, converter=converter))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TimeoutWarning)
        with pytest.raises(TimeoutWarning, match=r"(?s)the converter has been busy .*in __call__"):
            next(iterator)
    gate.touch()
    assert next(iterator) == [0, 1, 2, 3]


def test_workers_stopped_with_nothing_in_hand_are_warned_of(make):
    iterator = make(range(400), 4, dataset_timeout=0.5, n_processes=2)
    assert next(iterator) == [0, 1, 2, 3]
    pids = pids_of(iterator)
    wait_until(lambda: all(map(sleeps, pids)), "the workers have nothing to do")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    delivered = [0, 1, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error", TimeoutWarning)
        with pytest.raises(TimeoutWarning, match=r"progress .*: \d+ is stopped, \d+ is stopped;"):
            while True:
                delivered += next(iterator)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    while len(delivered) < 100:
        delivered += next(iterator)
    assert delivered == list(range(100))


SLOW_START = """
import pathlib, sys, time, warnings
from fastiter import MultiprocessIterator

gate = pathlib.Path(__file__).with_name("gate")
while __name__ != "__main__" and not gate.exists():
    time.sleep(0.01)

if __name__ == "__main__":
    iterator = MultiprocessIterator(
        range(8), 4, shuffle=False, n_processes=1, dataset_timeout=0.2, context="spawn"
    )
    warnings.simplefilter("error", MultiprocessIterator.TimeoutWarning)
    try:
        next(iterator)
    except MultiprocessIterator.TimeoutWarning as warning:
        print(str(warning).partition(" for ")[0])
    gate.touch()
    warnings.simplefilter("ignore")
    print(next(iterator))
    iterator.finalize()
"""


@pytest.mark.parametrize("on_timeout", ["warn", "retry"])
def test_a_worker_that_does_not_start_is_warned_of(output_of, on_timeout):
    """Its main module is imported before anything of the iterator's runs."""
    program = SLOW_START.replace("=0.2", f"=0.2, on_timeout={on_timeout!r}")
    assert output_of(program) == "it has been starting\n[0, 1, 2, 3]\n"


def test_no_warning_for_many_short_fetches(make):
    class Slow(Blocks):
        def __getitem__(self, index):
            time.sleep(0.02)
            return index

    with warnings.catch_warnings():
        make_warnings_errors()
        iterator = begun(make(Slow(64), 64, dataset_timeout=0.4))
        assert next(iterator) == list(range(64))


def test_no_limit_no_warning(make, tmp_path):
    gate = tmp_path / "gate"
    iterator = make(Gated(8, {1}, gate), 4, dataset_timeout=None)
    with warnings.catch_warnings():
        make_warnings_errors()

        def open_the_gate():
            wait_until((tmp_path / "gate.1").exists, "a worker waits at the gate")
            threading.Event().wait(1.2)
            gate.touch()

        with later(open_the_gate):
            assert next(iterator) == [0, 1, 2, 3]


def test_a_stopped_worker_goes_on_with_nothing_lost(make):
    dataset = Numbered(32)
    iterator = make(dataset, 4, dataset_timeout=0.3)
    next(iterator)
    pids = pids_of(iterator)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def go_on():
        threading.Event().wait(1.5)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    with warnings.catch_warnings(record=True), later(go_on):
        warnings.simplefilter("always")
        for number in range(1, 24):
            assert [i for _, i in next(iterator)] == [(4 * number + row) % 32 for row in range(4)]
    assert pids_of(iterator) == pids


def test_a_worker_stopped_in_a_fetch_is_warned_of(make, tmp_path):
    gate = tmp_path / "gate"
    iterator = make(Gated(16, {0}, gate), 4, n_processes=1, dataset_timeout=0.3)
    iterator.start()
    wait_until((tmp_path / "gate.0").exists, "a worker waits at the gate")
    pids = pids_of(iterator)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TimeoutWarning)
        with pytest.raises(TimeoutWarning, match=r"index 0\b[^\0]*stopped"):
            next(iterator)
    gate.touch()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert next(iterator) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["once", "repeatedly"])
@pytest.mark.no_stuck_rows("no worker is to end")
def test_ctrl_c_while_waiting(make, tmp_path, how):
    gate = tmp_path / "gate"
    iterator = make(Gated(16, {0}, gate), 4)
    iterator.start()
    pids = pids_of(iterator)
    wait_until((tmp_path / "gate.0").exists, "a worker waits at the gate")
    sent = []
    main = threading.get_native_id()

    def interrupt():
        wait_until(lambda: sleeps(main), "next() waits")
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range(1 if how == "once" else 4):
        with later(interrupt), pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert time.monotonic() - sent[-1] < 5
        assert iterator.current_position == 0
    gate.touch()
    assert next(iterator) == [0, 1, 2, 3]
    assert next(iterator) == [4, 5, 6, 7]
    assert pids_of(iterator) == pids


def test_ctrl_c_to_the_whole_group(tmp_path):
    """As a terminal does it: workers stay, the program gets its KeyboardInterrupt, and goes on."""
    status, out, err = run_script(
        tmp_path,
        f"""
        import os, pathlib, signal, threading, time
        from examples_of import Gated
        from fastiter import MultiprocessIterator
        from inside import pids_of
        from outside import wait_until

        if __name__ == "__main__":
            gate = pathlib.Path({str(tmp_path)!r}) / "gate"
            for method in ("fork", "spawn", "forkserver"):
                iterator = MultiprocessIterator(
                    Gated(16, {{0}}, gate), 4, n_processes=2, shuffle=False, context=method
                )
                iterator.start()
                pids = pids_of(iterator)
                mark = pathlib.Path(f"{{gate}}.0")
                wait_until(mark.exists, "a worker fetches")
                sender = threading.Timer(0.2, os.killpg, (0, signal.SIGINT))
                sender.start()
                try:
                    next(iterator)
                except KeyboardInterrupt:
                    gate.touch()
                    assert next(iterator) == [0, 1, 2, 3]
                    assert next(iterator) == [4, 5, 6, 7]
                    assert pids_of(iterator) == pids
                else:
                    raise SystemExit("no KeyboardInterrupt")
                sender.join()
                iterator.finalize()
                gate.unlink()
                mark.unlink()
            print("done")
        """,
        start_new_session=True,
    )
    assert (status, out, err) == (0, "done\n", "")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ctrl_c_to_the_group_while_workers_start(tmp_path, method):
    """Workers that are still on their way neither die of it nor write a word."""
    status, out, err = run_script(
        tmp_path,
        f"""
        import os, signal, threading
        from examples_of import Blocks
        from fastiter import MultiprocessIterator
        from inside import pids_of

        if __name__ == "__main__":
            iterator = MultiprocessIterator(
                Blocks(16, 1), 4, n_processes=3, shuffle=False, context={method!r}
            )
            iterator.start()
            for _ in range(5):
                try:
                    os.killpg(0, signal.SIGINT)
                    threading.Event().wait(0.03)
                except KeyboardInterrupt:
                    pass
            assert [int(a[0]) for a in next(iterator)] == [0, 1, 2, 3]
            iterator.finalize()
            assert iterator.stats().deaths == 0 or {method!r} == "forkserver"
            print("done")
        """,
        start_new_session=True,
    )
    assert (status, out) == (0, "done\n"), err
    if method != "forkserver":  # its children are open to signals before they run our code
        assert err == ""


# -- finalize -------------------------------------------------------------------------------------


def test_finalize_wakes_who_waits(make, tmp_path):
    iterator = make(Gated(16, {0}, tmp_path / "gate"), 4)
    iterator.start()
    wait_until((tmp_path / "gate.0").exists, "a worker waits at the gate")
    raised = []

    def wait():
        with pytest.raises(RuntimeError, match="finalize"):
            next(iterator)
        raised.append(True)

    with later(wait) as thread:
        wait_until(lambda: len(ring_of(iterator).scheduled), "batches are scheduled")
        threading.Event().wait(0.2)
        begin = time.monotonic()
        iterator.finalize()
        assert time.monotonic() - begin < 5
        thread.join(5)
    assert raised
    with pytest.raises(RuntimeError, match="finalized"):
        next(iterator)


def test_two_threads_finalize_while_two_wait(make, tmp_path):
    iterator = make(Gated(16, {0}, tmp_path / "gate"), 4)
    iterator.start()
    wait_until((tmp_path / "gate.0").exists, "a worker waits at the gate")
    errors = []

    def wait():
        try:
            next(iterator)
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(2)]
    threads += [threading.Thread(target=iterator.finalize, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()
    assert len(errors) == 2


@pytest.mark.parametrize("state", ["sleeping", "native", "stopped", "signals", "idle"])
def test_finalize_is_bounded(make, tmp_path, state):
    class Hangs(Blocks):
        def __getitem__(self, index):
            if state == "signals":
                signal.pthread_sigmask(signal.SIG_SETMASK, range(1, 32))
            (tmp_path / str(index)).touch()
            if state == "native":
                sum(range(10**12))
            threading.Event().wait()

    iterator = make(Blocks(16) if state in ("idle", "stopped") else Hangs(16), 4, n_processes=3)
    if state in ("idle", "stopped"):
        next(iterator)
    else:
        iterator.start()
        wait_until(lambda: len(list(tmp_path.iterdir())) >= 3, "all workers hang")
    pids = pids_of(iterator)
    if state == "stopped":
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    iterator.finalize()
    assert time.monotonic() - begin < 5
    assert not any(map(is_alive, pids))
    iterator.finalize()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_finalize_right_after_the_start(make, method):
    for _ in range(3):
        iterator = make(Blocks(16), 4, context=method)
        iterator.start()
        pids = pids_of(iterator)
        begin = time.monotonic()
        iterator.finalize()
        assert time.monotonic() - begin < 5
        assert not any(map(is_alive, pids))


def test_ctrl_c_in_finalize_leaves_nothing(make, tmp_path):
    """The second try ends what the first has left."""
    iterator = make(Gated(16, {0}, tmp_path / "gate"), 4)
    iterator.start()
    wait_until((tmp_path / "gate.0").exists, "a worker waits at the gate")
    pids = pids_of(iterator)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    pool = pool_of(iterator)

    def interrupt():
        wait_until(lambda: pool.closed, "finalize is under way")
        os.kill(os.getpid(), signal.SIGINT)

    with later(interrupt), pytest.raises(KeyboardInterrupt):
        iterator.finalize()
        threading.Event().wait(1)
    iterator.finalize()
    assert not any(map(is_alive, pids))
