"""The memory and time of a GPU that are in use, from NVIDIA's management library through ``nvidia-ml-py``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from contextlib import ExitStack


@final
class Gpu:
    """One device of ``library``, the module ``pynvml``; a query runs nothing on the device and never waits for it."""

    def __init__(self, library: Any, device: Any) -> None:
        self._library = library
        self._device = device

    @classmethod
    def open(cls, name: str, stack: ExitStack, library: Any = None) -> Gpu | None:
        """Return the device with this number or UUID until ``stack`` is closed, or None if it does not exist.

        None is also returned on a machine without NVIDIA's driver.
        """
        library = library or _load()
        if library is None:
            return None
        try:
            library.nvmlInit()
            stack.callback(library.nvmlShutdown)
            if name.isdecimal():
                return cls(library, library.nvmlDeviceGetHandleByIndex(int(name)))
            return cls(library, library.nvmlDeviceGetHandleByUUID(name))
        except library.NVMLError:
            return None

    def in_use(self) -> tuple[float | None, float | None]:
        """Return the shares, from 0 to 1, of memory and time in use; None for a figure that the driver lacks."""
        return self._memory(), self._time()

    def _memory(self) -> float | None:
        try:
            memory = self._library.nvmlDeviceGetMemoryInfo(self._device)
        except self._library.NVMLError:
            return None
        return memory.used / memory.total if memory.total else None

    def _time(self) -> float | None:
        try:
            return min(1.0, float(self._library.nvmlDeviceGetUtilizationRates(self._device).gpu) / 100)
        except self._library.NVMLError:
            return None


def _load() -> Any:
    try:
        return import_module("pynvml")
    except ImportError:  # it is installed on Linux only
        return None
