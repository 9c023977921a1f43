"""Device arguments and what they do on a machine without CuPy, or with it (marked gpu)."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fastiter import concat_examples, to_device
from fastiter._device.devices import CpuDevice, resolve
from fastiter.dataset import ConcatWithAsyncTransfer

HOST = [-1, -5, np.int64(-1), "cpu", "@numpy", "-1"]


@pytest.mark.parametrize("device", HOST)
def test_names_of_the_host(device):
    assert resolve(device) == CpuDevice()
    array = np.arange(3)
    assert to_device(device, array) is array


def test_none_leaves_anything_where_it_is():
    assert resolve(None) is None
    thing = object()
    assert to_device(None, thing) is thing


def test_host_takes_lists_numbers_and_none():
    array = np.arange(3)
    assert to_device(-1, None) is None
    sent = to_device(-1, [array, None, 2.5, array])
    assert type(sent) is list
    assert sent[0] is sent[3] is array
    assert sent[1] is None
    assert sent[2].shape == ()
    assert to_device(-1, (array,)) == (array,)


@pytest.mark.parametrize("thing", [object(), {"a": 1}, {1, 2}])
def test_what_is_no_array_is_refused(thing):
    with pytest.raises(TypeError, match=type(thing).__name__):
        to_device(-1, thing)


WRONG_NAMES = [
    "",
    "gpu",
    "cuda:",
    "cuda:x",
    "cuda:-1",
    "@cupy",
    "@cupy:x",
    "@numpy:0",
    "--1",
    "cpu:0",
]
WRONG_TYPES = [1.0, 1.5, True, np.bool_(True), [0], (0,), b"cpu", object()]


def fails_everywhere(make, device, error, matches):
    for call in (
        partial(to_device, x=np.zeros(1)),
        partial(concat_examples, [1, 2]),
        lambda device: next(make([1], 1, converter=concat_examples, device=device)),
    ):
        with pytest.raises(error, match=matches):
            call(device)


@pytest.mark.parametrize("device", [*WRONG_NAMES, *WRONG_TYPES])
def test_wrong_devices(make, device):
    is_name = isinstance(device, str)
    matches = rf"'cuda:<id>'.*, not {device!r}" if is_name else type(device).__qualname__
    error = ValueError if is_name else TypeError
    fails_everywhere(make, device, error, f"device must be None, .*{matches}")
    with pytest.raises(error, match=matches):
        resolve(device)


class Elsewhere:
    """A device object of another library, as Chainer's."""

    xp = np

    def send(self, x):
        return ("elsewhere", x)


def test_device_objects_of_others_do_the_sending():
    device = Elsewhere()
    assert resolve(device) is device
    assert concat_examples([1], device)[0] == "elsewhere"


def test_devices_compare_hash_print_and_pickle():
    device = CpuDevice()
    assert pickle.loads(pickle.dumps(device)) == device
    assert hash(device) == hash(CpuDevice())
    assert device != "@numpy"
    assert (str(device), device.xp) == ("@numpy", np)


def test_a_device_of_cupy_names_its_gpu(world):
    assert resolve(world.cupy.cuda.Device(1)).name == "@cupy:1"


@pytest.mark.parametrize("device", [0, 3, "cuda", "cuda:1", "@cupy:0", "0"])
def test_gpu_without_cupy_says_what_to_install(make, device, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    matches = r"pip install cupy-cuda12x \(or cupy-cuda13x\)"
    fails_everywhere(make, device, RuntimeError, matches)
    for call in (resolve, partial(ConcatWithAsyncTransfer(), [1, 2])):
        with pytest.raises(RuntimeError, match=matches):
            call(device)


@pytest.fixture
def without_gpu():
    """CuPy itself, where it finds no GPU."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        if cupy.cuda.runtime.getDeviceCount():
            pytest.skip("there is a GPU")
    except cupy.cuda.runtime.CUDARuntimeError:
        pass
    return cupy


@pytest.mark.parametrize("device", [0, 3, "cuda", "cuda:1", "@cupy:0", "0", "a Device"])
def test_cupy_without_a_gpu_says_what_to_install(without_gpu, make, device):
    if device == "a Device":
        device = without_gpu.cuda.Device(1)
        assert resolve(device).name == "@cupy:1"
    matches = r"needs a GPU, and CuPy finds none .*driver.*pip install cupy-cuda12x"
    fails_everywhere(make, device, RuntimeError, matches)
    with pytest.raises(RuntimeError, match=matches):
        ConcatWithAsyncTransfer()([1, 2], device)


def test_cupy_is_not_imported_for_the_host():
    before = "cupy" in sys.modules
    concat_examples([np.zeros(2), np.ones(2)], -1)
    assert ("cupy" in sys.modules) is before


@pytest.mark.parametrize("device", [None, -1, "cpu"])
def test_iterator_gives_the_converter_its_device(make, device):
    iterator = make(range(4), 2, shuffle=False, converter=concat_examples, device=device)
    assert iterator.device is device
    assert iterator.converter is concat_examples
    batch = next(iterator)
    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == [0, 1]


def test_the_benchmark_says_what_it_needs():
    program = (
        "import sys; sys.modules['cupy'] = None; from bench import device; sys.exit(device.main())"
    )
    top = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=top, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs a GPU and CuPy for it: CuPy is not installed" in done.stderr


@pytest.mark.gpu
def test_to_a_gpu_and_back(cupy):
    array = np.arange(6.0).reshape(2, 3)
    for device in (0, "cuda:0", "@cupy:0", cupy.cuda.Device(0)):
        there = to_device(device, array)
        assert isinstance(there, cupy.ndarray)
        assert to_device(0, there) is there
        np.testing.assert_array_equal(to_device(-1, there), array)
    assert to_device(0, [2.5])[0].shape == ()
