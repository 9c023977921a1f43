"""``python -m fastiter doctor``: what it finds, here and where something is missing."""

from __future__ import annotations

import errno
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import environment, run

from fastiter._cli.doctor.doctor import _CHECKS, status
from fastiter._cli.doctor.findings import without_secrets
from fastiter._util.units import as_bytes

sys.path.append(str(Path(__file__).parents[1] / "process"))
import without_calls

MIB = 1 << 20
COMMAND = ["-m", "fastiter", "doctor"]
SECRET = "hush"
PROXIES = {
    "https_proxy": f"http://me:{SECRET}@proxy.example:8080",
    "http_proxy": f"me:{SECRET}/p@ss@proxy.example",
    "no_proxy": "localhost,.example",
}


def doctor(
    *,
    prefix: tuple[str, ...] = (),
    limits: dict[int, int] | None = None,
    cpus: set[int] | None = None,
    **variables: str,
) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    """Run it; return its status, and its findings by section and name."""

    def restrict() -> None:
        for limit, value in (limits or {}).items():
            resource.setrlimit(limit, (value, value))
        if cpus is not None:
            os.sched_setaffinity(0, cpus)

    command = (*prefix, *COMMAND, "--json")
    answer = run(*command, env=environment(**variables), preexec_fn=restrict)
    assert answer.stderr == ""
    findings = json.loads(answer.stdout)["findings"]
    found = {(finding["section"], finding["name"]): finding for finding in findings}
    assert len(found) == len(findings)
    return answer.returncode, found


def test_all_is_well_here() -> None:
    answer = run(*COMMAND, env=environment(**PROXIES))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert SECRET not in answer.stdout
    lines = answer.stdout.splitlines()
    assert lines[-1].startswith("problems: 0, notes: ")
    assert all(len(line) <= 120 for line in lines if "/" not in line)
    assert "  ok      passed                  2 workers delivered 100 examples exactly" in (
        answer.stdout
    )
    sections = [line for line in lines if line and not line.startswith((" ", "problems"))]
    assert sections == list(_CHECKS)


def install(folder: Path) -> str:
    """Put two packages there, of which CuPy ends the process that imports it, as a broken driver
    may; return the path on which they are found."""
    for name, version in (("threadpoolctl", "9.8"), ("cupy-cuda99x", "7.6")):
        facts = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
    (folder / "cupy.py").write_text("import os\nos.abort()\n")
    return os.pathsep.join([str(folder), environment()["PYTHONPATH"]])


def test_fewer_cpus_limits_and_packages_are_told(tmp_path: Path) -> None:
    one = {min(os.sched_getaffinity(0))}
    has_gpu = any(name.startswith("nvidia") for name in os.listdir("/dev"))
    status, found = doctor(
        cpus=one,
        limits={resource.RLIMIT_NOFILE: 60, resource.RLIMIT_FSIZE: 512 * MIB},
        FASTITER_BUFFER_POOL="64",
        **PROXIES,
        RANK="3",
        WORLD_SIZE="many",
        CHAINER_DATASET_ROOT=f"{__file__}/nowhere",
        PYTHONPATH=install(tmp_path),
    )
    assert status == int(has_gpu)
    usable = found["CPUs", "usable"]
    assert usable["fact"].startswith("1 of ")
    assert usable["fact"].endswith("n_processes=None starts 1 workers")
    assert "RLIMIT_NOFILE 60;" in found["Limits", "open files"]["fact"]
    assert found["Limits", "file size"]["fact"] == "RLIMIT_FSIZE 512 MiB"
    notes = {key for key, finding in found.items() if finding["judgement"] == "note"}
    expected = {("Limits", "open files"), ("Limits", "file size"), ("Environment", "rank")}
    assert notes >= expected | {("Environment", "downloads")}
    assert found["Environment", "FASTITER_BUFFER_POOL"]["fact"] == "'64'"
    assert SECRET not in json.dumps(list(found.values()))
    assert found["Environment", "https_proxy"]["fact"] == "'http://***@proxy.example:8080'"
    assert found["Environment", "http_proxy"]["fact"] == "'***@proxy.example'"
    assert found["Environment", "no_proxy"]["fact"] == "'localhost,.example'"
    assert "WORLD_SIZE" in found["Environment", "rank"]["fact"]
    # Four slots and what belongs to them fit into the largest file, and are powers of two.
    assert "room for 64 MiB in each slot" in found["Shared memory", "memory"]["fact"]
    assert found["Packages", "threadpoolctl"]["fact"] == "9.8"
    assert "cupy-cuda99x 7.6" in found["GPUs", "CuPy"]["fact"]
    assert found["GPUs", "devices"]["fact"] == "exit status -6"
    assert found["GPUs", "devices"]["judgement"] == ("problem" if has_gpu else "note")
    assert found["Self-test", "passed"]["judgement"] == "ok"


def test_what_is_broken_is_a_problem_and_a_status() -> None:
    """Too few descriptors for a pool: the self-test fails, and says why."""
    status, found = doctor(
        limits={resource.RLIMIT_NOFILE: 9}, FASTITER_BUFFER_POOL="many", PYTHONWARNINGS="ignore"
    )
    assert status == 1
    wrong = found["Environment", "FASTITER_BUFFER_POOL"]
    assert wrong["judgement"] == "problem"
    assert "set it to the MiB" in wrong["help"]
    failed = found["Self-test", "failed"]
    assert failed["judgement"] == "problem"
    assert os.strerror(errno.EMFILE) in failed["fact"]
    assert "MultithreadIterator" in failed["help"]


@pytest.mark.skipif(
    platform.machine() not in without_calls.NUMBERS, reason="numbers of system calls are not known"
)
def test_refused_calls_are_told() -> None:
    calls = "memfd_create,pidfd_open,eventfd2"
    prefix = (without_calls.__file__, "EPERM", calls, sys.executable)
    status, found = doctor(prefix=prefix)
    assert status == 0
    assert "/dev/shm without a name" in found["Shared memory", "memory"]["fact"]
    assert "keeps batches there" in found["Shared memory", "/dev/shm"]["fact"]
    assert found["Shared memory", "wake-ups"]["fact"] == "pipes, since eventfd is not available"
    assert "pidfd_open" in found["Shared memory", "deaths of workers"]["fact"]
    assert found["Self-test", "passed"]["judgement"] == "ok"


def test_a_limit_of_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "memory_total", lambda: 1 << 20)
    found = {finding.name: finding for finding in _CHECKS["Memory"]()}
    assert found["control group"].fact == "limited to 1.0 MiB"
    assert found["control group"].judgement == "note"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a/b:https://me:hush@x.example/y?key=hush /c", "/a/b:https://***@x.example/y?*** /c"),
        ("s3://x.example/y@z", "s3://x.example/y@z"),
        ("/home/me@work:0,1", "/home/me@work:0,1"),
    ],
)
def test_passwords_in_any_value_are_masked(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_bytes_are_shown_for_people() -> None:
    shown = [as_bytes(n) for n in (0, 1023, 1536, 10 * MIB, 3 << 40, 1 << 51)]
    assert shown == ["0 bytes", "1023 bytes", "1.5 KiB", "10 MiB", "3.0 TiB", "2048 TiB"]


def test_ends_in_silence_when_nobody_reads_on():
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *COMMAND], stdout=pipe, stderr=pipe, text=True
    ) as doctor:
        doctor.stdout.close()
        assert doctor.stderr.read() == ""
    assert doctor.returncode == 141


def test_works_where_standard_output_is_closed():
    command = f"{shlex.join([sys.executable, *COMMAND])} >&-"
    answer = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
