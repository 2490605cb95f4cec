"""Every probe keeps the port's promises, and each its own."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast.adapters.resource_probe.host import Gpu, HostResourceProbe
from holdfast.adapters.resource_probe.memory import QUIET, MemoryResourceProbe
from holdfast.domain.resources.balance_policy import Pressure
from holdfast.ports.testing.resource_probe import ResourceProbeContract


class TestHostResourceProbe(ResourceProbeContract):
    def make_probe(self, folder):
        return HostResourceProbe(folder / "not" / "there" / "yet")

    def test_work_between_two_samples_shows(self, probe):
        """Processors that were busy since the sample before are a share above nothing."""
        probe.sample()
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        assert probe.sample().processors > 0.01

    def test_what_is_written_shows_where_the_kernel_counts_it(self, tmp_path):
        """Bytes that reach a disk between two samples are a rate, which is 0 on a machine without counters."""
        probe = self.make_probe(tmp_path)
        with (tmp_path / "file").open("wb") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        assert probe.sample().disk_bytes >= 0.0

    def test_the_control_group_and_the_pressures_are_read_where_they_are(self, tmp_path):
        """A full control group is full memory, and pressures are shares; what the kernel does not tell is None."""
        for name, value in (("max", 100 << 20), ("current", 95 << 20), ("stat", "inactive_file 0")):
            (tmp_path / f"memory.{name}").write_text(f"{value}\n")
        (tmp_path / "io").write_text("some avg10=37.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=20.00 total=1\n")
        (tmp_path / "memory").write_text("damaged\n")
        probe = HostResourceProbe(tmp_path, cgroup=tmp_path, pressure=tmp_path)
        sample = probe.sample()
        assert sample.memory == pytest.approx(0.95)
        assert sample.pressure == Pressure(memory=None, disk=pytest.approx(0.375), processors=None)
        assert sample.gpu is sample.gpu_memory is None
        (tmp_path / "memory.pressure").write_text("some avg10=12.00 avg60=1.00 avg300=0.10 total=5\n")
        (tmp_path / "io.pressure").write_text("some avg10=1.00 avg60=1.00 avg300=0.10 total=5\n")
        (tmp_path / "cpu").write_text("some avg10=0.50 avg60=1.00 avg300=0.10 total=5\n")
        larger = Pressure(memory=pytest.approx(0.12), disk=pytest.approx(0.375), processors=pytest.approx(0.005))
        assert probe.sample().pressure == larger


class TestMemoryResourceProbe(ResourceProbeContract):
    def make_probe(self, folder):
        return MemoryResourceProbe()

    def test_samples_come_in_order_and_the_last_one_stays(self):
        """A machine that was told what to do does that, and then stays as it is."""
        samples = [replace(QUIET, memory=share) for share in (0.1, 0.9)]
        probe = MemoryResourceProbe(samples)
        assert [probe.sample() for _ in range(4)] == [*samples, samples[-1], samples[-1]]


class NVMLError(Exception):
    """Stands for the error of ``pynvml``."""


class Driver:
    """Stands for ``pynvml`` with one device, number 1 or GPU-abc."""

    NVMLError = NVMLError

    def __init__(self, *, fails=()):
        self.fails = fails
        self.open = 0

    def _raise_if(self, is_failing):
        if is_failing:
            raise NVMLError

    def nvmlInit(self):  # noqa: N802  the library's name
        self._raise_if("init" in self.fails)
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, number):  # noqa: N802
        self._raise_if(number != 1)

    def nvmlDeviceGetHandleByUUID(self, name):  # noqa: N802
        self._raise_if(name != "GPU-abc")

    def nvmlDeviceGetMemoryInfo(self, device):  # noqa: N802
        self._raise_if("memory" in self.fails)
        return SimpleNamespace(total=200, used=50)

    def nvmlDeviceGetUtilizationRates(self, device):  # noqa: N802
        self._raise_if("busy" in self.fails)
        return SimpleNamespace(gpu=80)


@pytest.mark.parametrize("name", ["1", "GPU-abc"])
@pytest.mark.parametrize(
    ("fails", "expected"), [((), (0.25, 0.8)), (("memory",), (None, 0.8)), (("busy",), (0.25, None))]
)
def test_a_gpu_tells_how_full_and_busy_it_is(name, fails, expected):
    """A device is found by number and by UUID; what its driver does not tell is None."""
    driver = Driver(fails=fails)
    with ExitStack() as stack:
        assert Gpu.open(name, stack, driver).in_use() == pytest.approx(expected)
    assert driver.open == 0


@pytest.mark.parametrize(("name", "fails"), [("0", ()), ("GPU-xyz", ()), ("MIG-1", ()), ("1", ("init",))])
def test_a_gpu_that_the_driver_does_not_know_is_none(name, fails):
    """Where the driver has no such device, or does not start, there is nothing to ask."""
    with ExitStack() as stack:
        assert Gpu.open(name, stack, Driver(fails=fails)) is None


def test_a_machine_without_such_a_gpu_is_no_error():
    """Without the driver, or with one that does not know the device, the library itself gives none."""
    with ExitStack() as stack:
        assert Gpu.open("GPU-00000000-0000-0000-0000-000000000000", stack) is None
