"""Interrupts, forks and mistakes of programs whose workers are on a cluster."""

from __future__ import annotations

import copy
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from cluster_of_tests import LocalCluster, kill
from test_faults import ClusterError, Slow, remote, serial, wait_until, workers
from test_same_batches import RayIterator, same

import fastiter


class Large(Slow):
    """A batch of 16 is larger than a node's object store."""

    def __getitem__(self, i):
        return np.full(10 << 20, i, np.uint8)


class Locked(Slow):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_a_batch_larger_than_a_store(cluster):
    with remote(cluster, Large(), order_sampler=None, shuffle=False) as iterator:
        for first in (0, 16, 32):
            for i, row in enumerate(next(iterator), first):
                assert row.nbytes == 10 << 20
                assert (row == i).all()


def test_a_dataset_that_does_not_pickle(cluster):
    with remote(cluster, Locked()) as iterator, pytest.raises(TypeError, match="lock"):
        next(iterator)


@pytest.mark.parametrize("address", ["ray://127.0.0.1:1", "127.0.0.1", "", 5])
def test_an_address_that_is_none(address):
    with pytest.raises(ValueError, match="host:port"):
        RayIterator(Slow(), 16, address=address)


def test_resources_that_are_none():
    with pytest.raises(TypeError, match=r"resources must be a dict of amounts, .*, not 5"):
        RayIterator(Slow(), 16, resources=5)


def test_arguments_of_local_workers():
    with pytest.raises(TypeError, match="no argument 'n_processes'"):
        RayIterator(Slow(), 16, n_processes=2)


def test_another_program_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        since = time.monotonic()
        with RayIterator(Slow(), 16, address=address) as iterator:
            with pytest.raises(ClusterError, match=address):
                next(iterator)
            assert time.monotonic() - since < 15


# An interrupt between an open() and its `with` leaves the file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts(cluster):
    """Each of many calls of next() is interrupted while it waits, and repeated."""
    interrupts = 0
    with serial() as other:
        expected = [next(other) for _ in range(21)]
    with remote(cluster, n_prefetch=1) as iterator:
        same(next(iterator), expected[0])
        for after in expected[1:]:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            before = signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                batch = next(iterator)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
                batch = next(iterator)
            finally:
                signal.signal(signal.SIGALRM, before)
            same(batch, after)
    assert interrupts > 5


def test_a_fork_of_the_program(cluster):
    with remote(cluster, n_workers=1) as iterator, serial() as other:
        same(next(iterator), next(other))
        pid = os.fork()
        if pid == 0:
            try:
                with pytest.raises(RuntimeError, match="in a child"):
                    next(iterator)
                with copy.copy(iterator) as own:
                    same(next(own), next(other))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        for _ in range(10):
            same(next(iterator), next(other))


def test_two_iterators(cluster):
    one, two = remote(cluster, n_workers=1), remote(cluster, n_workers=1)
    with one, two, serial() as other:
        for _ in range(10):
            batch = next(other)
            same(next(one), batch)
            same(next(two), batch)


def test_an_iterator_that_is_dropped(cluster):
    iterator = remote(cluster)
    next(iterator)
    assert workers()
    del iterator
    gc.collect()
    wait_until(lambda: not workers(), 10)


PROGRAM = """
import sys
sys.path += {path!r}
import ray
import test_faults as t
if __name__ == "__main__":
    ray.init(address={address!r}, logging_level="ERROR", configure_logging=False)
    with t.RayIterator(t.Slow(), 16, shuffle=False) as iterator:
        first = next(iterator)
        ray.shutdown()
        for start in range(16, 80, 16):
            assert [i for _, i in next(iterator)] == [*range(start, start + 16)]
        print("goes on", ray.is_initialized())
"""


def test_the_program_leaves_the_cluster(cluster, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(path=sys.path, address=cluster.address))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "goes on False\n", done.stderr


class SlowFarAway(Slow):
    """Some rows take 20 s on the cluster."""

    def __getitem__(self, i):
        info = fastiter.get_worker_info()
        if i % 16 == 5 and info is not None and info.id >= 1:
            time.sleep(20)
        return super().__getitem__(i)


def test_local_workers_fetch_what_is_late_on_the_cluster(cluster):
    """Rows that a remote worker has begun, and the helper has promised."""
    others = {"n_local": 1, "n_workers": 1, "hedge": 1.0}
    with remote(cluster, SlowFarAway(), **others) as iterator, serial() as other:
        iterator.start()
        wait_until(lambda: sum(node.workers for node in iterator.stats().nodes) == 1, 20)
        since = time.monotonic()
        for _ in range(20):
            same(next(iterator), next(other))
        assert time.monotonic() - since < 15
        assert iterator.stats().won > 0


class HangsOnceEach(Slow):
    """A row hangs on this machine, and one on the cluster."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __getitem__(self, i):
        info = fastiter.get_worker_info()
        met = None if info is None else Path(self.folder) / f"met by {info.id}"
        if met is not None and i % 16 == 5 and not met.exists():
            met.touch()
            time.sleep(1000)
        return super().__getitem__(i)


def test_rows_that_hang_here_and_there(cluster, tmp_path):
    others = {"n_local": 1, "n_workers": 1, "dataset_timeout": 1.0, "on_timeout": "retry"}
    with remote(cluster, HangsOnceEach(tmp_path), **others) as iterator, serial() as other:
        wait_until(lambda: same(next(iterator), next(other)) or len([*tmp_path.iterdir()]) == 2, 60)
        for _ in range(10):
            same(next(iterator), next(other))


class Uneven(Slow):
    """One row of each batch takes as long as some batches."""

    def __getitem__(self, i):
        if i % 64 == 5:
            time.sleep(0.2)
        return i


def test_as_many_batches_ahead_as_help(cluster):
    made = {"n_prefetch": "auto", "shuffle": False, "order_sampler": None}
    with remote(cluster, Uneven(), n_local=0, **made) as iterator:
        assert iterator.n_prefetch == 2
        wait_until(lambda: next(iterator) and iterator.n_prefetch > 2, 60)
        assert "n_prefetch from 2 to 4" in iterator.stats().changes[0]


def test_no_place_at_all(cluster):
    """Another iterator has all places until it ends."""
    with remote(cluster) as first, serial() as other:
        same(next(first), next(other))
        wait_until(lambda: next(first) and len(workers()) == 2, 20)
        with remote(cluster, dataset_timeout=None) as second, warnings.catch_warnings():
            warnings.simplefilter("error", fastiter.TimeoutWarning)
            with pytest.raises(fastiter.TimeoutWarning) as caught:
                next(second)
            text = str(caught.value)
            assert text.startswith("0 of 2 workers have a place")
            assert "needs resources={'CPU': 1}" in text
            assert "the nodes have [{'CPU': 1.0}, {'CPU': 1.0}], and {'CPU': 0} of all" in text
            first.finalize()
            warnings.simplefilter("ignore")
            with serial() as other:
                for _ in range(10):
                    same(next(second), next(other))


class HangsAtLoad(Slow):
    def __setstate__(self, state):
        self.__dict__ = state
        time.sleep(1000)


class FailsAtLoad(Slow):
    def __setstate__(self, state):
        raise LookupError("a file is missing")


def test_a_dataset_that_does_not_load(cluster):
    with remote(cluster, FailsAtLoad()) as iterator:
        with pytest.raises(LookupError, match="a file is missing") as caught:
            next(iterator)
        assert " on node " in "".join(caught.value.__notes__)


def test_a_dataset_that_hangs_at_load(cluster):
    made = {"dataset_timeout": 1.0, "n_workers": 1}
    with remote(cluster, HangsAtLoad(), **made) as iterator, warnings.catch_warnings():
        warnings.simplefilter("error", fastiter.TimeoutWarning)
        with pytest.raises(fastiter.TimeoutWarning, match=r"(?s)has been loading .*__setstate__"):
            next(iterator)
    with remote(cluster, HangsAtLoad(), on_timeout="retry", n_retries=1, **made) as iterator:
        with pytest.raises(fastiter.DatasetTimeoutError, match="loading the dataset") as caught:
            next(iterator)
        assert caught.value.attempts == 2


def test_an_end_in_mid_batch(cluster):
    wait_until(lambda: not workers(), 20)
    iterator = remote(cluster, Large(), batch_size=4)
    next(iterator)
    iterator.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        next(iterator)
    wait_until(lambda: not workers(), 10)


def test_a_call_of_finalize_while_next_waits(cluster):
    iterator = remote(cluster, HangsAtLoad())
    caught = []

    def take():
        try:
            next(iterator)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    wait_until(workers, 20)
    iterator.finalize()
    thread.join(20)
    assert "finalized while next() waited" in str(caught[0])
    wait_until(lambda: not workers(), 10)


def test_more_workers_where_these_are_not_enough(cluster):
    with remote(cluster, n_workers="auto", n_prefetch=2) as iterator:
        next(iterator)
        assert iterator.n_workers == 2
        wait_until(lambda: next(iterator) and iterator.n_workers > 2, 60)
        assert "n_workers from 2 to 3" in iterator.stats().changes[0]


@pytest.mark.stress
def test_fewer_workers_where_none_is_needed(cluster):
    with remote(cluster, n_workers="auto", n_prefetch=8) as iterator:

        def rests():
            next(iterator)
            time.sleep(0.3)  # the loop's own work
            return iterator.n_workers == 1

        wait_until(rests, 120)
        assert "n_workers from 2 to 1" in str(iterator.stats())


def test_a_node_comes_and_this_machines_raylet_goes():
    wait_until(lambda: not workers(), 20)  # of other tests
    cluster = LocalCluster(1)
    try:
        with remote(cluster, n_workers=2, dataset_timeout=None) as iterator, serial() as other:
            same(next(iterator), next(other))
            assert len(workers()) == 1
            cluster.ask("add")
            wait_until(lambda: same(next(iterator), next(other)) or len(workers()) == 2, 20)
            kill(cluster.ask("nodes")[0]["raylet"])
            since = time.monotonic()
            with pytest.raises(ClusterError, match="raylet"):
                while True:
                    same(next(iterator), next(other))
            assert time.monotonic() - since < 10
            with serial() as resumed:
                resumed.load_state_dict(iterator.state_dict())
                for _ in range(10):
                    same(next(resumed), next(other))
    finally:
        cluster.close()
