"""Prints what CuPy's devices are; run by the doctor as a process of its own."""

from __future__ import annotations

from fastiter._device.cupy import import_cupy_for
from fastiter._util.units import as_bytes


def main() -> None:
    """Print a line for each device: its number, name, memory, and the versions of CUDA."""
    runtime = import_cupy_for(0).cuda.runtime
    versions = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    driver, toolkit = (f"{version // 1000}.{version % 1000 // 10}" for version in versions)
    for number in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(number)
        name = properties["name"].decode()
        memory = as_bytes(properties["totalGlobalMem"])
        print(f"{number} {name}, {memory}; driver for CUDA {driver}, CuPy's CUDA {toolkit}")


if __name__ == "__main__":
    main()
