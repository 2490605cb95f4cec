"""The contract of ``ResourceProbe``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from holdfast.ports.resource_probe import ResourceProbe


class ResourceProbeContract(ABC):
    """The contract of every ``ResourceProbe``; derive a class named ``Test...`` for an adapter."""

    @abstractmethod
    def make_probe(self, folder: Path) -> ResourceProbe:
        """Return a probe of the machine, real or simulated, with ``folder`` on its disk."""

    @pytest.fixture
    def probe(self, tmp_path: Path) -> Iterable[ResourceProbe]:
        """Yield a probe."""
        probe = self.make_probe(tmp_path)
        yield probe
        probe.close()

    def test_shares_and_rates_are_what_they_are_called(self, probe: ResourceProbe) -> None:
        """Each fraction lies between 0 and 1, no rate is negative, and only unknown values are None."""
        for _ in range(2):
            figures = asdict(probe.sample())
            rates = {name: figures.pop(name) for name in ("disk_bytes", "network_bytes")}
            assert all(rate >= 0 for rate in rates.values())
            figures |= {f"pressure of {name}": share for name, share in figures.pop("pressure").items()}
            assert all(share is None or 0 <= share <= 1 for share in figures.values())
            assert None not in (figures["memory"], figures["processors"], figures["disk"])

    def test_many_samples_take_less_than_a_minute(self, probe: ResourceProbe) -> None:
        """A thousand samples take less than a minute, also on a busy machine."""
        start = time.perf_counter()
        for _ in range(1000):
            probe.sample()
        assert time.perf_counter() - start < 60.0

    def test_closing_twice_is_harmless(self, tmp_path: Path) -> None:
        """The second ``close`` changes nothing, with or without a sample before it."""
        unused, used = self.make_probe(tmp_path), self.make_probe(tmp_path)
        assert used.sample().memory >= 0
        for probe in (unused, used, unused, used):
            probe.close()
