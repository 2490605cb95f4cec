"""How full and busy a GPU is, from NVIDIA's management library, which comes with the driver."""

from __future__ import annotations

from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_uint, c_ulonglong, c_void_p
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from contextlib import ExitStack


@final
class _Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


@final
class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


@final
class Gpu:
    """One device of ``library``; asking it starts nothing on the device and waits for nothing there."""

    def __init__(self, library: Any, device: c_void_p) -> None:
        self._library = library
        self._device = device

    @classmethod
    def open(cls, name: str, stack: ExitStack, library: Any = None) -> Gpu | None:
        """Return the device with that number or UUID until ``stack`` is closed, None where the driver has none."""
        library = library or _load()
        if library is None or library.nvmlInit_v2():
            return None
        stack.callback(library.nvmlShutdown)
        device = c_void_p()
        if name.isdecimal():
            failed = library.nvmlDeviceGetHandleByIndex_v2(c_uint(int(name)), byref(device))
        else:
            failed = library.nvmlDeviceGetHandleByUUID(c_char_p(name.encode()), byref(device))
        return None if failed else cls(library, device)

    def in_use(self) -> tuple[float | None, float | None]:
        """Return the shares of memory and of time in use, each None where the driver does not tell."""
        memory, busy = _Memory(), _Utilization()
        has_memory = not self._library.nvmlDeviceGetMemoryInfo(self._device, byref(memory))
        has_busy = not self._library.nvmlDeviceGetUtilizationRates(self._device, byref(busy))
        return (
            memory.used / memory.total if has_memory and memory.total else None,
            min(1.0, busy.gpu / 100) if has_busy else None,
        )


def _load() -> Any:
    try:
        library = CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    library.nvmlDeviceGetHandleByIndex_v2.argtypes = [c_uint, POINTER(c_void_p)]
    library.nvmlDeviceGetHandleByUUID.argtypes = [c_char_p, POINTER(c_void_p)]
    library.nvmlDeviceGetMemoryInfo.argtypes = [c_void_p, POINTER(_Memory)]
    library.nvmlDeviceGetUtilizationRates.argtypes = [c_void_p, POINTER(_Utilization)]
    return library
