"""Extension modules and the environment switches that change how they are built.

Everything else about the package stands in ``pyproject.toml``.

FASTITER_DEBUG=1       no optimisation, C assertions, Cython bounds and None checks
FASTITER_SANITIZE=x    address, undefined, thread, or several separated by commas
FASTITER_COVERAGE=1    gcov counters in C, line tracing in Cython
FASTITER_PORTABLE=1    the portable POSIX path instead of the Linux one
FASTITER_WERROR=1      compiler warnings are errors
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from pathlib import Path

import numpy
from Cython import __version__ as cython_version
from Cython.Build import cythonize
from setuptools import Extension, setup

os.chdir(Path(__file__).resolve().parent)


def switch(name: str) -> bool:
    return os.environ.get(f"FASTITER_{name}", "0") not in ("", "0")


DEBUG = switch("DEBUG")
COVERAGE = switch("COVERAGE")
PORTABLE = switch("PORTABLE")
SANITIZE = [s for s in os.environ.get("FASTITER_SANITIZE", "").split(",") if s]

define_macros = [
    ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
    ("NPY_TARGET_VERSION", "NPY_1_23_API_VERSION"),
]
compile_args = ["-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"]
# What Cython generates trips these; csrc alone is compiled without the exceptions by tests/c.
compile_args += ["-Wno-unused-parameter", "-Wno-unused-function", "-Wno-missing-field-initializers"]
compile_args += ["-Wno-cast-function-type"]
link_args: list[str] = []
if DEBUG or SANITIZE or COVERAGE:
    compile_args += ["-g", "-O0" if DEBUG or COVERAGE else "-O1", "-fno-omit-frame-pointer"]
else:
    compile_args += ["-O3", "-g0"]
if DEBUG:
    compile_args += ["-UNDEBUG"]
    define_macros += [("FI_DEBUG", "1")]
if SANITIZE:
    sanitizers = f"-fsanitize={','.join(SANITIZE)}"
    compile_args += [sanitizers, "-fno-sanitize-recover=all"]
    link_args += [sanitizers]
if COVERAGE:
    compile_args += ["--coverage"]
    link_args += ["--coverage"]
    define_macros += [("CYTHON_TRACE", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
if PORTABLE:
    define_macros += [("FI_PORTABLE", "1")]

directives = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "embedsignature": True,
    "embedsignature.format": "python",
    "autotestdict": False,
    "auto_pickle": False,  # a handle of shared memory must never be copied by its fields
    "linetrace": COVERAGE,
}

# distutils and Cython rebuild by the times of files only. So the settings are a file that each
# extension depends on, and generated C lies in a directory named after them.
tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
settings = repr((numpy.__version__, cython_version, directives, define_macros, compile_args))
settings_file = Path("build", f"settings-{tag}")
if not settings_file.exists() or settings_file.read_text() != settings:
    settings_file.parent.mkdir(exist_ok=True)
    settings_file.write_text(settings)
if switch("WERROR"):
    compile_args += ["-Werror"]


def extension(name: str, *csrc: str) -> Extension:
    return Extension(
        f"fastiter.{name}",
        [f"fastiter/{name}.pyx", *(f"csrc/{file}" for file in csrc)],
        include_dirs=["csrc", numpy.get_include()],
        define_macros=define_macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        libraries=["pthread", "rt"] if sys.platform == "linux" else [],
        depends=["setup.py", str(settings_file), *map(str, Path("csrc").glob("*.h"))],
    )


SHUFFLE = [
    "fi_shuffle.c",
    "fi_shuffle_deal.c",
    "fi_shuffle_generic.c",
    "fi_shuffle_avx2.c",
    "fi_shuffle_avx512.c",
]

extensions = [
    extension("_order", "fi_order.c", "fi_seed.c", *SHUFFLE),
    extension("_virtual", "fi_virtual.c", "fi_virtual_x86.c"),
    extension("_weighted", "fi_weighted.c"),
    extension("_batch", "fi_batch.c"),
    extension("_memory", "fi_image.c", "fi_platform.c"),
    extension("_buffers", "fi_buffers.c", "fi_platform.c"),
    extension("_ring", "fi_ring.c", "fi_parent.c", "fi_cell.c", "fi_platform.c"),
    extension("_rows", "fi_ring.c", "fi_platform.c", "fi_batch.c"),
    extension("_views"),
    extension("_columns", "fi_gather.c"),
    extension("_fill", "fi_ring.c", "fi_cell.c", "fi_platform.c"),
]

setup(
    ext_modules=cythonize(
        extensions,
        build_dir=f"build/cython-{hashlib.sha256(settings.encode()).hexdigest()[:12]}",
        compiler_directives=directives,
    ),
)
