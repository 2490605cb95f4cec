"""A probe that returns the samples it was given, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.domain.resources.balance_policy import ResourceSample
from holdfast.ports.resource_probe import ResourceProbe

if TYPE_CHECKING:
    from collections.abc import Iterable

QUIET = ResourceSample(memory=0.3, processors=0.5, disk=0.4, disk_bytes=0.0, network_bytes=0.0)


@final
class MemoryResourceProbe(ResourceProbe):
    """Returns ``samples`` in order, then the last one repeatedly; without samples, those of an idle machine."""

    def __init__(self, samples: Iterable[ResourceSample] = (QUIET,)) -> None:
        self._samples = iter(samples)
        self._last = QUIET

    @override
    def sample(self) -> ResourceSample:
        self._last = next(self._samples, self._last)
        return self._last

    @override
    def close(self) -> None:
        pass
