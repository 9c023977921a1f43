"""The programs in examples/ run, and print what they promise.

`digits.py` is run by the tests of the demo, `merge_files.py` by one of its own.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from programs import environment, run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ELSEWHERE = {"cluster.py", "digits.py", "merge_files.py"}

# By example: the packages that it needs, and lines that it prints.
PRINTED = {
    "resume.py": ((), ["killed by signal 9", "resumed: the same 20 batches, and the same sum"]),
    "ranks.py": (
        (),
        ["epoch 1: 3 ranks, 80 examples each, every example once", "all ranks have the weights"],
    ),
    "text_padding.py": (
        (),
        [
            "tokens (3, 8)  lengths [5, 6, 6]  labels [0, 1, 1]",
            "tokens (3, 8)  lengths [3, 8, 1]  labels [0, 1, 0]",
            "tokens (1, 8)  lengths [7]  labels [1]",
        ],
    ),
    "images.py": (("PIL",), ["fastiter.images: 60 of 60 right"]),
    "packed_documents.py": (
        ("torch", "transformers", "accelerate"),
        ["200 documents in 71 rows", "loss 3.", "loss 0."],
    ),
    "table_of_images.py": (
        ("pyarrow", "PIL"),
        ["epoch 1: 8 row groups decoded, 120 of 120 right"],
    ),
    "pretraining.py": (
        ("torch",),
        ["step 0: validation loss 4.", "step 60: validation loss 0.", "30: the same weights"],
    ),
    "chainer_trainer.py": (("chainer",), ["test accuracy after 4 epochs: 0.9"]),
    "torch_loop.py": (("torch",), ["epoch 3", "test accuracy 1.00"]),
    "jax_loop.py": (("jax",), ["epoch 5  mean squared error 0.0"]),
}


def skip_without(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("name", PRINTED)
def test_the_example_prints_what_it_promises(name, tmp_path):
    packages, lines = PRINTED[name]
    skip_without(*packages)
    command = ("-W", "ignore", "-W", "error::ResourceWarning", EXAMPLES / name)
    result = run(*command, cwd=tmp_path, env=environment(JAX_PLATFORMS="cpu", OMP_NUM_THREADS="1"))
    assert (result.returncode, result.stderr) == (0, "")
    expected = list(lines)
    if name == "images.py" and importlib.util.find_spec("cv2") is not None:
        expected.append("OpenCV: 60 of 60 right")
    assert [line for line in expected if line not in result.stdout] == [], result.stdout
    if name == "packed_documents.py":
        found = re.search(r"summed: rows ([\d.]+), documents ([\d.]+)", result.stdout)
        assert float(found[1]) == pytest.approx(float(found[2]), abs=1e-3)
    assert list(tmp_path.iterdir()) == []


# The kernel is this very interpreter, whatever kernels are installed.
RUN_NOTEBOOK = """
import json, sys
import nbclient, nbformat
from jupyter_client import AsyncKernelManager

notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
manager = AsyncKernelManager(kernel_name="python3")
manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
nbclient.NotebookClient(notebook, km=manager, timeout=60).execute()
outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
assert {output["output_type"] for output in outputs} == {"execute_result"}, outputs
print(json.dumps([output["data"]["text/plain"] for output in outputs]))
"""


def test_the_notebook_runs(tmp_path):
    skip_without("nbclient", "nbformat", "ipykernel")
    # In a process of its own: the client leaves sockets behind.
    result = run("-c", RUN_NOTEBOOK, EXAMPLES / "notebook.ipynb", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert len(shown) == 3
    assert shown[0].startswith("((100, 8, 8), dtype('float32'), array([ 0,  1,  4,  9, 16])")
    assert shown[1] == "(5, 5.1, array([1., 2., 3.], dtype=float32))"
    assert shown[2] == "1.0"


def test_every_example_is_run_and_listed():
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert names == {*PRINTED, *ELSEWHERE, "notebook.ipynb"}
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"[{name}]({name})" not in listed] == []
