"""Measurements of a machine's resources, and the knobs by which a run changes its use of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Knob(StrEnum):
    """What can be changed while a run goes on, without another result but for the rounding of ``MICRO_BATCH``."""

    PREFETCH = "prefetch"
    THREADS = "threads"
    MICRO_BATCH = "micro_batch"
    SAVE_EVERY = "save_every"


@dataclass(frozen=True, slots=True)
class KnobSetting:
    """Where a knob stands, where it was set at the start of the run, and between which values it may be turned."""

    value: int
    usual: int
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """The share of the last ten seconds in which something stood still for want of each; None is what nobody tells."""

    memory: float | None = None
    disk: float | None = None
    processors: float | None = None


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """What was in use at one moment; shares are of what there is, from 0 to 1, and None is what cannot be told.

    ``memory`` is the machine's or the control group's, whichever is fuller; ``processors`` are busy, and
    ``disk_bytes`` and ``network_bytes`` moved a second, since the sample before. ``pressure`` is Linux's own figure.
    """

    memory: float
    processors: float
    disk: float
    disk_bytes: float
    network_bytes: float
    pressure: Pressure = Pressure()
    gpu_memory: float | None = None
    gpu: float | None = None
