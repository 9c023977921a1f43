"""Programs that end, or are ended, while they take samples from readers in processes."""

from __future__ import annotations

import signal

import pytest
from outside import HANG, is_alive, orphaned_names, run_script, sleeps, start_script, wait_until

HEAD = """
import itertools, os, signal, sys, threading, time
import numpy as np
from fastiter.reader import multiprocess_reader
from outside import children

def arrays():
    while True:
        yield np.zeros(1000), 1

samples = multiprocess_reader([arrays, itertools.count], True, 20, context="fork")()
kept = [next(samples) for _ in range(50)]
"""


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ("", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import builtins; builtins.kept = samples", 0, ""),
        ("cycle = [samples]; cycle.append(cycle); del samples", 0, ""),
    ],
)
def test_a_program_ends_with_a_pass_under_way(tmp_path, body, status, error):
    names = orphaned_names()
    code, out, err = run_script(tmp_path, f"{HEAD}\nprint(*children())\nsys.stdout.flush()\n{body}")
    pids = [int(word) for word in out.split()]
    assert code == status
    assert len(pids) == 2
    assert (err.strip().splitlines() or [""])[-1].startswith(error)
    assert not error or err
    assert error or err == ""
    for pid in pids:
        assert not is_alive(pid)
    assert orphaned_names() <= names


def test_the_exit_is_silent_while_daemon_threads_iterate(tmp_path):
    program = """
import itertools, threading, warnings
from fastiter.reader import firstn, multiprocess_reader

warnings.simplefilter("ignore", RuntimeWarning)  # threads make forks unsafe, which is told

def consume(n):
    while True:
        for _ in firstn(multiprocess_reader([itertools.count], context="fork"), n)():
            started.release()

started = threading.Semaphore(0)
for n in [10**9] * 4 + [10]:  # one thread begins and ends passes all the time
    threading.Thread(target=consume, args=(n,), daemon=True).start()
for _ in range(1000):
    started.acquire()
"""
    assert run_script(tmp_path, program) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_program_leaves_no_process(tmp_path, number):
    program = start_script(tmp_path, f"{HEAD}\nprint(*children(), flush=True)\ntime.sleep(1000)")
    pids = [int(word) for word in program.stdout.readline().split()]
    assert len(pids) == 2
    program.send_signal(number)
    program.wait(HANG)
    program.communicate()
    for pid in pids:
        wait_until(lambda pid=pid: not is_alive(pid), "the readers end with the program")


def test_ctrl_c_while_waiting(tmp_path):
    body = """
def slow():
    yield 0
    time.sleep(1000)

waiting = multiprocess_reader([slow], context="fork")()
next(waiting)
print("waits", flush=True)
try:
    next(waiting)
except KeyboardInterrupt:
    print("interrupted", list(waiting))
"""
    program = start_script(tmp_path, HEAD + body)
    assert program.stdout.readline() == "waits\n"
    wait_until(lambda: sleeps(program.pid), "the program waits")
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=HANG)
    assert (program.returncode, out, err) == (0, "interrupted []\n", "")
