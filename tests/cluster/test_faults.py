"""Batches after the loss of workers, nodes, or the cluster as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from cluster_of_tests import LocalCluster, kill, processes
from test_same_batches import Augmented, RayIterator, compare, same, shuffled

import fastiter

ray_package = pytest.importorskip("fastiter.ray", reason="Ray is not installed")
ClusterError = ray_package.ClusterError


class Slow:
    """Each row takes 5 ms."""

    def __init__(self, n=128):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(0.005)
        return np.full((16, 16), i), i


class Refusing(Slow):
    def __getitem__(self, i):
        if i == 21:
            raise LookupError(f"no row {i}")
        return i


class Deadly(Slow):
    def __getitem__(self, i):
        if i == 21:
            os.kill(os.getpid(), signal.SIGKILL)
        return i


class Hanging(Slow):
    def __getitem__(self, i):
        if i == 21:
            time.sleep(1000)
        return i


def remote(cluster, dataset=None, **others):
    made = {"batch_size": 16, "order_sampler": shuffled(), "n_workers": 2, **others}
    return RayIterator(dataset or Slow(), address=cluster.address, **made)


def serial():
    return fastiter.SerialIterator(Slow(), 16, order_sampler=shuffled())


def workers():
    return processes("ray::NodeWorker")


def lose(nodes, how=signal.SIGKILL):
    """End or stop the raylet of the first of the nodes that has workers, and these."""
    found = workers()
    for node in nodes:
        theirs = [pid for pid in found if parent(pid) in node.get("raylet", ())]
        if theirs:
            kill([*node["raylet"], *theirs], how)
            return [*node["raylet"], *theirs]
    raise AssertionError("no node has workers")


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_exception_arrives_as_it_was(cluster):
    with remote(cluster, Refusing(), order_sampler=None, shuffle=False) as iterator:
        next(iterator)
        with pytest.raises(LookupError, match="no row 21") as caught:
            next(iterator)
        text = "".join(caught.value.__notes__)
        assert "dataset index 21" in text and " on node " in text
        assert "__getitem__" in str(caught.value.__cause__)
        assert next(iterator) == [*range(32, 48)]


def test_failing_rows_are_skipped(cluster):
    made = {"order_sampler": None, "shuffle": False, "on_error": "skip", "skip_limit": None}
    with remote(cluster, Refusing(), **made) as iterator:
        next(iterator)
        assert next(iterator) == [*range(16, 21), *range(22, 32)]


def test_an_index_that_kills_workers(cluster):
    with remote(cluster, Deadly(), order_sampler=None, shuffle=False) as iterator:
        assert next(iterator) == [*range(16)]
        with pytest.raises(fastiter.WorkerDiedError, match="index 21"):
            next(iterator)
        assert next(iterator) == [*range(32, 48)]


def test_a_row_that_hangs_is_given_up(cluster):
    # Time enough to load the dataset, which imports this module.
    made = {"order_sampler": None, "shuffle": False, "dataset_timeout": 8.0}
    made |= {"on_timeout": "retry", "n_retries": 1}
    with remote(cluster, Hanging(), **made) as iterator:
        assert next(iterator) == [*range(16)]
        with pytest.raises(fastiter.DatasetTimeoutError, match="index 21") as caught:
            next(iterator)
        assert caught.value.attempts == 2
        assert "time.sleep(1000)" in caught.value.stack
        assert next(iterator) == [*range(32, 48)]


def test_a_row_that_hangs_is_warned_of(cluster):
    made = {"order_sampler": None, "shuffle": False, "dataset_timeout": 1.0}
    with remote(cluster, Hanging(), **made) as iterator:
        next(iterator)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*busy with index 21", fastiter.TimeoutWarning)
            with pytest.raises(fastiter.TimeoutWarning, match="busy with index 21"):
                next(iterator)


def test_more_workers_than_places(cluster):
    warned = pytest.warns(fastiter.TimeoutWarning, match="2 of 5 workers")
    with remote(cluster, n_workers=5, dataset_timeout=1.0) as iterator, serial() as other, warned:
        for _ in range(60):
            same(next(iterator), next(other))


def test_a_worker_that_is_killed(cluster):
    with remote(cluster) as iterator, serial() as other:
        for number in range(60):
            same(next(iterator), next(other))
            if number in (5, 30):
                kill(workers()[:1])


def test_nothing_is_left(cluster):
    wait_until(lambda: not workers(), 20)
    before = processes("ray::")
    iterator = remote(cluster)
    next(iterator)
    assert len(workers()) == 2
    iterator.finalize()
    wait_until(lambda: not workers(), 10)
    assert set(processes("ray::")) <= {*before, *processes("ray::IDLE")}


PROGRAM = """
import os, sys, time
sys.path += {path!r}
import test_faults as t
if __name__ == "__main__":
    iterator = t.RayIterator(t.Slow(), 16, n_workers=2, address={address!r})
    next(iterator)
    print("ready", flush=True)
    time.sleep(1000)
"""


def test_a_consumer_that_is_killed(cluster, tmp_path):
    wait_until(lambda: not workers(), 20)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(path=sys.path, address=cluster.address))
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert workers()
        process.kill()
    wait_until(lambda: not workers(), 10)


def test_a_helper_that_is_killed(cluster):
    with remote(cluster) as iterator, serial() as other:
        for _ in range(5):
            same(next(iterator), next(other))
        (worker,) = iterator.stats().workers
        os.kill(worker.pid, signal.SIGKILL)
        since = time.monotonic()
        with pytest.raises(ClusterError, match="SIGKILL"):
            while True:
                same(next(iterator), next(other))
        assert time.monotonic() - since < 10
        other.load_state_dict(iterator.state_dict())
        for _ in range(20):  # it connects again
            same(next(iterator), next(other))


CONNECTED = """
import os, sys
sys.path += {path!r}
import ray
import test_faults as t
if __name__ == "__main__":
    ray.init(address={address!r}, logging_level="ERROR", configure_logging=False)
    ref = ray.put(5)
    with t.RayIterator(t.Slow(), 16, shuffle=False) as iterator:
        print([i for _, i in next(iterator)])
    print(ray.get(ref), ray.is_initialized())
"""


def test_the_programs_own_connection_is_kept(cluster, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(CONNECTED.format(path=sys.path, address=cluster.address))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [str([*range(16)]), "5 True"], done.stderr


def test_other_versions_on_a_node(cluster, monkeypatch):
    monkeypatch.setattr(fastiter, "__version__", "9.9")  # the helper is a fork of this process
    with remote(cluster) as iterator, pytest.raises(ClusterError, match=r"has .* fastiter 9\.9"):
        next(iterator)


class SlowOnce(Slow):
    """The first fetch of a row takes 20 s, once there is a file "slow"."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __getitem__(self, i):
        if i == 21:
            with contextlib.suppress(FileNotFoundError):
                (Path(self.folder) / "slow").rename(Path(self.folder) / "met")
                time.sleep(20)
        return super().__getitem__(i)


def test_a_slow_row_is_fetched_by_another_node(cluster, tmp_path):
    slow = SlowOnce(tmp_path)
    with remote(cluster, slow, hedge=0.2) as iterator:
        wait_until(lambda: next(iterator) and len(workers()) == 2, 20)
        (tmp_path / "slow").touch()
        iterator.reset()
        since = time.monotonic()
        for _ in range(8):
            next(iterator)
        assert (tmp_path / "met").exists()
        assert time.monotonic() - since < 15


def test_statistics_tell_of_nodes(cluster):
    with remote(cluster) as iterator:
        for _ in range(60):
            next(iterator)
        wait_until(lambda: sum(n.rows for n in iterator.stats().nodes) >= 60 * 16, 5)
        stats = iterator.stats()
        assert sum(node.bytes for node in stats.nodes) > 60 * 16 * 16 * 16 * 8
        assert stats.nodes[0].node in str(stats)
        assert "n_workers" in stats.advice or "workers on the cluster" in stats.advice


def test_nobody_answers():
    since = time.monotonic()
    with RayIterator(Slow(), 16, address="127.0.0.1:9") as iterator:
        with pytest.raises(ClusterError, match=r"127\.0\.0\.1:9"):
            next(iterator)
        assert time.monotonic() - since < 15
        assert iterator.state_dict()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_node_is_lost(how):
    """In a cluster of its own. On Ray's default health checks."""
    wait_until(lambda: not workers(), 20)  # of other tests
    cluster = LocalCluster(3)
    try:
        with remote(cluster, n_workers=3) as iterator, serial() as other:
            same(next(iterator), next(other))
            wait_until(lambda: len(workers()) == 3, 20)
            for _ in range(10):
                same(next(iterator), next(other))
            lost = lose(cluster.ask("add")[1:], how)
            slowest = 0.0
            for _ in range(60):
                since = time.monotonic()
                same(next(iterator), next(other))
                slowest = max(slowest, time.monotonic() - since)
            assert slowest < 10
            if how == signal.SIGSTOP:
                kill(lost, signal.SIGCONT)
                for _ in range(20):
                    same(next(iterator), next(other))
    finally:
        cluster.close()


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_raylet_alone_and_the_head_are_lost():
    wait_until(lambda: not workers(), 20)  # of other tests
    cluster = LocalCluster(2)
    try:
        with remote(cluster) as iterator, serial() as other:
            for _ in range(5):
                same(next(iterator), next(other))
            wait_until(lambda: len(workers()) == 2, 20)
            head, node = cluster.ask("nodes")
            orphans = [pid for pid in workers() if parent(pid) in node["raylet"]]
            assert orphans
            kill(node["raylet"])
            wait_until(lambda: not set(orphans) & set(workers()), 10)
            for _ in range(20):
                same(next(iterator), next(other))
            kill(head["gcs_server"])
            since = time.monotonic()
            with pytest.raises(ClusterError, match="head"):
                while True:
                    same(next(iterator), next(other))
            assert time.monotonic() - since < 10
            other.load_state_dict(iterator.state_dict())
    finally:
        cluster.close()


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_twenty_nodes_are_killed():
    """One after the other, each replaced by a fresh one; all batches are compared."""
    cluster = LocalCluster(3)
    try:
        with remote(cluster, n_workers=3) as iterator, serial() as other:
            for _ in range(20):
                slowest = 0.0
                for _ in range(40):
                    since = time.monotonic()
                    same(next(iterator), next(other))
                    slowest = max(slowest, time.monotonic() - since)
                assert slowest < 10
                wait_until(lambda: same(next(iterator), next(other)) or len(workers()) == 3, 20)
                lose(cluster.ask("nodes")[1:])
                cluster.ask("add")
    finally:
        cluster.close()


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_the_first_thousand_batches_of_three_nodes():
    cluster = LocalCluster(3)
    try:
        compare(
            remote(cluster, Augmented(), n_workers=3),
            fastiter.SerialIterator(Augmented(), 16, order_sampler=shuffled()),
            1000,
        )
    finally:
        cluster.close()
