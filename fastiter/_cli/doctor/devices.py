"""Prints what CuPy's devices are; run by the doctor as a process of its own."""

from __future__ import annotations

from fastiter import _device
from fastiter._util.units import as_bytes


def main() -> None:
    """Print a line for each device: its number, name, memory, and the versions of CUDA."""
    runtime = _device.import_cupy_for(0).cuda.runtime
    driver, toolkit = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    for number in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(number)
        name = properties["name"].decode()
        versions = f"driver for CUDA {_dotted(driver)}, CuPy's CUDA {_dotted(toolkit)}"
        print(f"{number} {name}, {as_bytes(properties['totalGlobalMem'])}; {versions}")


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


if __name__ == "__main__":
    main()
