"""Extension modules and the environment switches that change how they are built.

Everything else about the package stands in ``pyproject.toml``.

FASTITER_DEBUG=1       no optimisation, C assertions, Cython bounds and None checks
FASTITER_SANITIZE=x    address, undefined, thread, or several separated by commas
FASTITER_COVERAGE=1    gcov counters in C, line tracing in Cython
FASTITER_PORTABLE=1    the portable POSIX path instead of the Linux one
FASTITER_WERROR=1      compiler warnings are errors
"""

# ruff: noqa: E402  (where it cannot be built, nothing else shall be the first error)

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

BUILDS = {"bdist_wheel", "build", "build_clib", "build_ext", "develop", "editable_wheel", "install"}


def obstacle() -> str | None:
    """A statement of why fastiter cannot be built here, or None."""
    supported = "fastiter runs on Linux, on CPython 3.10 or newer"
    if sys.implementation.name != "cpython":
        return f"{supported}. This is {sys.implementation.name}."
    if sys.platform != "linux" and os.environ.get("FASTITER_PORTABLE", "0") in ("", "0"):
        windows = " On Windows, WSL 2 is a Linux." if sys.platform == "win32" else ""
        return (
            f"{supported}. This is {sys.platform}, which is not supported.{windows} Programs for "
            "several systems can use torch.utils.data.DataLoader here, and depend on: "
            "fastiter-loader; sys_platform == 'linux'"
        )
    if not BUILDS.intersection(sys.argv):
        return None
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return (
            f"Building fastiter from its sources needs a C compiler, and {compiler!r} was not "
            "found. On Debian and Ubuntu: apt install gcc python3-dev. If your compiler has "
            "another name, set CC to it."
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        return (
            "Building fastiter from its sources needs the headers of CPython, and "
            f"{header} was not found. On Debian and Ubuntu: apt install python3-dev."
        )
    return None


if (statement := obstacle()) is not None:
    sys.exit(f"\n{statement}\n")

import numpy
from Cython import __version__ as cython_version
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext

os.chdir(Path(__file__).resolve().parent)


def switch(name: str) -> bool:
    return os.environ.get(f"FASTITER_{name}", "0") not in ("", "0")


DEBUG = switch("DEBUG")
COVERAGE = switch("COVERAGE")
PORTABLE = switch("PORTABLE")
SANITIZE = [s for s in os.environ.get("FASTITER_SANITIZE", "").split(",") if s]
SHRINKS = sys.platform == "linux" and not (DEBUG or SANITIZE or COVERAGE)

define_macros = [
    ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
    ("NPY_TARGET_VERSION", "NPY_1_23_API_VERSION"),
    ("CYTHON_COMPRESS_STRINGS", "0"),  # the archive of a wheel does it better, and at no import
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
    if SHRINKS:
        # Each module links only the functions of the C floor that it calls: a smaller wheel.
        compile_args += ["-ffunction-sections", "-fdata-sections"]
        link_args += ["-Wl,--gc-sections"]
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
    "freethreading_compatible": True,  # docs/reference/platforms.md: what was run, and what was not
    "auto_pickle": False,  # a handle of shared memory must never be copied by its fields
    "linetrace": COVERAGE,
}

# Functions that Cython would generate into each module are in one: a tenth less of a wheel.
shared = "fastiter._clib.cython_shared"

# distutils and Cython rebuild by the times of files only. So the settings are a file that each
# extension depends on, and generated C lies in a directory named after them.
tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}{sys.abiflags}"
settings = repr(
    (numpy.__version__, cython_version, directives, shared, define_macros, compile_args)
)
settings_file = Path("build", f"settings-{tag}")
if not settings_file.exists() or settings_file.read_text() != settings:
    settings_file.parent.mkdir(exist_ok=True)
    settings_file.write_text(settings)
if switch("WERROR"):
    compile_args += ["-Werror"]


headers = [*map(str, sorted(Path("csrc").rglob("*.h")))]
# The C floor is compiled once, into an archive of which each module links what it uses.
csrc = {
    "sources": [*map(str, sorted(Path("csrc").rglob("*.c")))],
    "obj_deps": {"": ["setup.py", str(settings_file), *headers]},
    "include_dirs": ["csrc"],
    "macros": define_macros,
    "cflags": compile_args,
}
# What Cython generates is calls, of which -O3 makes a tenth more code that is no faster; the loops
# over data are the C floor's.
module_args = ["-O2" if argument == "-O3" else argument for argument in compile_args]
# Modules that call the system, or wait for a network, are compiled for size. Of a wheel this spares
# 33 KB; of all that no example comes through, 110 KB, but loops then got an eighth fewer batches,
# though they took no more instructions.
small_args = ["-Os" if argument == "-O3" else argument for argument in compile_args]
small = {"_clib", "ray", "cache_table", "shm_image"}  # packages and modules
system_libraries = ["pthread", "rt"] if sys.platform == "linux" else []
processors = os.cpu_count() or 1

extensions = [
    Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        include_dirs=["csrc", numpy.get_include()],
        define_macros=define_macros,
        extra_compile_args=small_args if small & {path.parts[1], path.stem} else module_args,
        extra_link_args=link_args,
        libraries=["fastiter_csrc", *system_libraries],
        depends=["setup.py", str(settings_file), *csrc["sources"], *headers],
    )
    # The largest first: none is left for one processor alone at the end.
    for path in sorted(Path("fastiter").rglob("*.pyx"), key=lambda path: -path.stat().st_size)
]


# Cython would look at the times of its own files, too, which an isolated build has just installed.
generated = Path("build", f"cython-{hashlib.sha256(settings.encode()).hexdigest()[:12]}")
written = max(
    path.stat().st_mtime for path in [Path("setup.py"), *Path("fastiter").rglob("*.p[xy][dx]")]
)
for extension in extensions:
    made = (generated / extension.sources[0]).with_suffix(".c")
    if made.exists() and made.stat().st_mtime > written:
        extension.sources = [str(made)]


class BuildClib(build_clib):
    """Keeps the archive, for which an editable install would take a temporary directory."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_clib = self.build_temp = str(generated / f"csrc-{tag}")

    def build_libraries(self, libraries) -> None:
        for archive in Path(self.build_clib).glob("*.a"):
            archive.unlink()  # it would keep members whose sources are gone
        super().build_libraries(libraries)


class BuildExt(build_ext):
    """Uses all processors, builds the archive first, also where only the extensions are asked for,
    and keeps the modules of an editable install, which would compile all of them again each time.
    What goes into a wheel has no symbols, which debuggers and profilers of this tree want."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # An editable install forgets what setup() is given as options.
        self.parallel = self.parallel or processors
        if self.editable_mode:
            self.build_lib = str(generated / f"modules-{tag}")
        if SHRINKS and not self.inplace and not self.editable_mode:
            for extension in self.extensions:
                extension.extra_link_args = [*extension.extra_link_args, "-Wl,--strip-all"]

    def run(self) -> None:
        self.run_command("build_clib")
        super().run()


def translated() -> list[Extension]:
    """The extensions with C in place of Cython: of a second an extension, and of a minute under
    emulation. The metadata and an sdist name the sources only."""
    if {"egg_info", "dist_info", "sdist"}.intersection(sys.argv):
        return extensions
    utility = Extension(
        shared,
        [f"{shared.replace('.', '/')}.c"],  # written by Cython, into the folder of the others
        define_macros=define_macros,
        extra_compile_args=module_args,
        extra_link_args=link_args,
        depends=["setup.py", str(settings_file)],
    )
    return cythonize(
        [*extensions, utility],
        build_dir=str(generated),
        compiler_directives=directives,
        module_name=shared,  # of the shared one: the others have the names of their extensions
        shared_utility_qualified_name=shared,
        shared_utility_features_disabled=["MemoryView"],  # no module has one
        nthreads=processors if sys.platform == "linux" else 0,
    )


def main() -> None:
    setup(
        ext_modules=translated(),
        libraries=[("fastiter_csrc", csrc)],
        cmdclass={"build_clib": BuildClib, "build_ext": BuildExt},
    )


if __name__ == "__main__":  # Cython's processes import this file where they are not forked
    main()
