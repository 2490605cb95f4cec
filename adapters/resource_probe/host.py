"""Measures the machine through the operating system and the GPU's driver."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, final

import psutil
from typing_extensions import override

from holdfast.adapters.shared.device.host_memory import free_share
from holdfast.domain.resources.balance_policy import Pressure, ResourceSample
from holdfast.ports.resource_probe import ResourceProbe

_CGROUP, _PRESSURE = Path("/sys/fs/cgroup"), Path("/proc/pressure")
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_AVERAGE = re.compile(r"some avg10=([0-9.]+)")


@final
class HostResourceProbe(ResourceProbe):
    """Reads psutil, the control group under ``cgroup``, the pressures under ``pressure``, and NVML for ``gpu``.

    ``folder`` is on the disk to be measured. ``gpu`` is the number or UUID of a device in NVML, None for no GPU.
    """

    def __init__(
        self, folder: Path, *, gpu: str | None = None, cgroup: Path = _CGROUP, pressure: Path = _PRESSURE
    ) -> None:
        self._folder = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
        self._cgroup = cgroup
        self._pressure = pressure
        self._stack = ExitStack()
        self._gpu = Gpu.open(gpu, self._stack) if gpu is not None else None
        self._before = self._counted()

    @override
    def sample(self) -> ResourceSample:
        before, self._before = self._before, self._counted()
        passed, busy, idle, disk, network = (now - then for now, then in zip(self._before, before, strict=True))
        usage = shutil.disk_usage(self._folder)
        memory, processors = (None, None) if self._gpu is None else self._gpu.in_use()
        return ResourceSample(
            memory=1.0 - free_share(self._cgroup),
            processors=_share(busy, busy + idle),
            disk=_share(usage.used, usage.used + usage.free),
            disk_bytes=max(0.0, disk) / max(passed, 1e-6),
            network_bytes=max(0.0, network) / max(passed, 1e-6),
            pressure=Pressure(*map(self._waiting_for, ("memory", "io", "cpu"))),
            gpu_memory=memory,
            gpu=processors,
        )

    @override
    def close(self) -> None:
        self._stack.close()

    def _counted(self) -> tuple[float, ...]:
        """Return the time, the busy and idle seconds of processors, and bytes of disks and networks since the boot."""
        times = psutil.cpu_times()
        idle = float(times.idle + getattr(times, "iowait", 0.0))
        disk = psutil.disk_io_counters(nowrap=False)  # None on a machine without a disk of its own
        network = psutil.net_io_counters(nowrap=False)
        return (
            time.monotonic(),
            sum(getattr(times, kind, 0.0) for kind in _BUSY),
            idle,
            float(disk.read_bytes + disk.write_bytes) if disk else 0.0,
            float(network.bytes_sent + network.bytes_recv) if network else 0.0,
        )

    def _waiting_for(self, resource: str) -> float | None:
        """Return the larger of the machine's figure, which is that of all cores, and the control group's figure."""
        told = map(_waiting, (self._pressure / resource, self._cgroup / f"{resource}.pressure"))
        return max((share for share in told if share is not None), default=None)


def _waiting(file: Path) -> float | None:
    try:
        match = _AVERAGE.search(file.read_text())
    except OSError:  # a kernel that does not count it, or hides it from containers
        return None
    return None if match is None else min(1.0, float(match[1]) / 100)


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


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
