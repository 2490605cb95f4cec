"""A disk that becomes slow, and a process that takes memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, final

import psutil
from typing_extensions import override

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.resource_probe.memory import QUIET
from holdfast.domain.resources.balance_policy import Pressure
from holdfast.ports.data_source import Document
from holdfast.ports.forwarding.data_source import ForwardingDataSource
from holdfast.ports.resource_probe import ResourceProbe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.domain.resources.balance_policy import ResourceSample
    from holdfast.ports.data_source import Rejected, Unit

_HOG = """
import sys
held = []
print("ready", flush=True)
for line in sys.stdin:
    held = [bytearray(b"x") * (1 << 20) for _ in range(int(line))]
    print("holding", flush=True)
"""


@final
class SlowDisk(ForwardingDataSource):
    """Serves ``texts``, a unit each; between ``slow_down`` and ``recover`` each reader gets so many bytes a second."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(MemoryDataSource({f"{number:04}": [text] for number, text in enumerate(texts)}))
        self._is_fast = threading.Event()
        self._is_fast.set()
        self._rate = 1.0

    def slow_down(self, rate: float) -> None:
        """Give each reader ``rate`` bytes a second, however many read."""
        self._rate = rate
        self._is_fast.clear()

    def recover(self) -> None:
        """Be fast again, for those that wait too."""
        self._is_fast.set()

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        for item in super().read(unit, start):
            if isinstance(item, Document):
                self._is_fast.wait(len(item.text) / self._rate)
            yield item


@final
class Hog:
    """A process that holds as much memory as it is told to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self._answer()

    def hold(self, num_bytes: int) -> None:
        """Hold ``num_bytes`` from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{max(0, num_bytes) >> 20}\n")
        self._process.stdin.flush()
        self._answer()

    def close(self) -> None:
        """Let go of everything."""
        with self._process:
            self._process.kill()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.readline()


@final
class SmallMachine(ResourceProbe):
    """A machine of ``limit`` bytes that this process and the processes ``others`` have for themselves.

    Until there is a limit it is quiet. Nobody has to wait for memory: there is more of it than is said.
    """

    def __init__(self, others: Sequence[int]) -> None:
        self._processes = [psutil.Process(), *map(psutil.Process, others)]
        self.limit: int | None = None

    @property
    def used(self) -> int:
        """Return the bytes that are resident."""
        return sum(process.memory_info().rss for process in self._processes)

    @override
    def sample(self) -> ResourceSample:
        if self.limit is None:
            return QUIET
        return replace(QUIET, memory=min(1.0, self.used / self.limit), pressure=Pressure(memory=0.0))

    @override
    def close(self) -> None:
        pass
