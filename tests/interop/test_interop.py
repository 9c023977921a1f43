"""`fastiter.interop` where the other library is missing, and DLPack, which NumPy speaks itself."""

from __future__ import annotations

import gc
import importlib.util
import sys

import numpy as np
import pytest
from programs import environment, run

from fastiter import MultiprocessIterator, SerialIterator, concat_examples, interop
from fastiter.interop import as_chainer, as_jax, as_torch

DATASET = [(np.full((2, 3), i, np.float32), i) for i in range(40)]


@pytest.mark.parametrize(
    ("function", "module", "remedy"),
    [
        (as_chainer, "chainer", "chainer 7.8.1"),
        (as_jax, "jax", r"pip install jax"),
        (as_torch, "torch", "pip install torch"),
    ],
)
def test_a_missing_library_is_named_with_what_to_install(monkeypatch, function, module, remedy):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    iterator = SerialIterator(DATASET, 4)
    with pytest.raises(ImportError, match=rf"{function.__name__} needs .*{remedy}"):
        function(iterator)


def test_neither_the_import_nor_an_iteration_imports_other_libraries():
    program = (
        "import sys, fastiter.interop, fastiter; "
        "next(fastiter.SerialIterator([1, 2], 2, converter=fastiter.concat_examples)); "
        "assert not {'torch', 'chainer', 'jax'} & set(sys.modules)"
    )
    run("-c", program).check_returncode()


def test_public_names():
    names = {"JaxIterator", "TorchIterator", "as_chainer", "as_jax", "as_torch"}
    assert set(interop.__all__) == names


def test_batches_offer_dlpack_over_shared_memory():
    with MultiprocessIterator(
        DATASET, 4, shuffle=False, n_processes=1, converter=concat_examples
    ) as iterator:
        x, _ = next(iterator)
        again = np.from_dlpack(x)
        assert again.__array_interface__["data"][0] == x.__array_interface__["data"][0]
        del x
        gc.collect()
        for _ in range(20):
            next(iterator)
        np.testing.assert_array_equal(again[:, 0, 0], [0, 1, 2, 3])


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_jax_reads_shared_memory_without_copying(tmp_path):
    # In a process of its own: JAX's threads must not live where other tests fork.
    program = tmp_path / "program.py"
    program.write_text("""
import logging, jax, numpy as np
from fastiter import MultiprocessIterator, concat_examples

dataset = [(np.full((2, 3), i, np.float32), np.int32(i)) for i in range(40)]
if __name__ == "__main__":
    jax.numpy.ones(3).sum()  # its threads live now, and it warns of forks
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with MultiprocessIterator(
        dataset, 4, shuffle=False, n_processes=1, converter=concat_examples, context="safe"
    ) as iterator:
        for _ in range(10):  # the first batches teach what the examples are like
            next(iterator)
        held, shared = [], 0
        for _ in range(30):
            batch = next(iterator)
            arrays = tuple(map(jax.dlpack.from_dlpack, batch))
            for array, theirs in zip(batch, arrays):
                data = array.__array_interface__["data"][0]
                if data % 64 == 0:  # as all columns of shared memory, but not every copied-out one
                    assert theirs.unsafe_buffer_pointer() == data, theirs.dtype
                    shared += 1
            held.append(arrays)
            del batch, array
        assert shared > 0
        for number, (x, y) in enumerate(held):
            first = 4 * number % 40
            assert np.asarray(y).tolist() == list(range(first, first + 4))
            assert np.asarray(x)[:, 0, 0].tolist() == list(range(first, first + 4))
""")
    env = environment(JAX_PLATFORMS="cpu")
    result = run("-W", "error::RuntimeWarning", program, env=env)
    assert result.returncode == 0, result.stderr
    if sys.version_info < (3, 14):  # whose default is no fork
        assert "workers are started by a fork server, since" in result.stderr
