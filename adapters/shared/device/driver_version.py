"""The version of NVIDIA's driver, from its management library."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def driver_version(library: Any = None) -> tuple[str | None, str | None]:
    """Return the version of the driver and that of CUDA which it supports; None for both without a driver."""
    try:
        library = library or import_module("pynvml")
    except ImportError:  # it is installed on Linux only
        return None, None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None, None
    try:
        number = library.nvmlSystemGetCudaDriverVersion()
        return str(library.nvmlSystemGetDriverVersion()), f"{number // 1000}.{number % 1000 // 10}"
    except library.NVMLError:
        return None, None
    finally:
        library.nvmlShutdown()
