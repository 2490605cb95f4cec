"""Measurements of a machine's resources, and the knobs by which a run changes its use of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Knob(StrEnum):
    """A quantity that can change during a run without changing the result, except for rounding by ``MICRO_BATCH``."""

    PREFETCH = "prefetch"
    THREADS = "threads"
    MICRO_BATCH = "micro_batch"
    SAVE_EVERY = "save_every"


@dataclass(frozen=True, slots=True)
class KnobSetting:
    """The value of a knob, its value at the start of the run, and the range in which it may be turned."""

    value: int
    usual: int
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """The fraction of the last ten seconds in which tasks stalled for lack of each resource; None if not reported."""

    memory: float | None = None
    disk: float | None = None
    processors: float | None = None


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """The use of the machine at one moment, as fractions from 0 to 1; None is a figure that is not available.

    ``memory`` is that of the machine or the control group, whichever is fuller. ``processors`` is the fraction that was
    busy, and ``disk_bytes`` and ``network_bytes`` are bytes per second, since the sample before. ``pressure`` is
    Linux's own figure.
    """

    memory: float
    processors: float
    disk: float
    disk_bytes: float
    network_bytes: float
    pressure: Pressure = Pressure()
    gpu_memory: float | None = None
    gpu: float | None = None
