"""The ports for the metrics of a run: ``Monitor`` for figures alone, ``Tracker`` also for texts about the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Monitor(ABC):
    """Receives the metrics of a run.

    - ``record`` accepts any names and any floats, NaN and infinities included, and steps in any order.
    - ``rewind`` removes the metrics after ``step``, also those of an earlier process, if the sink can remove them. It
      is called at each start and at each roll-back, so that every step is recorded once. ``rewind(0)``, which begins a
      new run, removes all metrics, also those of step 0. A sink that cannot remove metrics, and has later ones, may
      continue in a new run of its own, linked to the former: each has every step once.
    - ``close`` makes all metrics visible and may be called twice; a later ``record`` is ignored.
    - Called from one thread, which belongs to this monitor alone and is not the thread that creates it. A call that
      takes long, hangs or raises does not stop training: the oldest metrics that wait for the monitor are dropped, and
      an error is reported. The run waits for the metrics of a monitor before each checkpoint, unless the monitor is
      behind or a ``Tracker``.
    """

    @abstractmethod
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of ``step``."""

    @abstractmethod
    def rewind(self, step: int) -> int | None:
        """Remove the metrics of later steps.

        A tracker that may lack metrics up to ``step`` returns the step up to which it has all; later ones are sent
        again.
        """

    @abstractmethod
    def close(self) -> None:
        """Write out all metrics and release the sink."""


@dataclass(frozen=True, slots=True)
class RunDescription:
    """The description of a run: ``run_id`` is the same at each start, and ``name`` is for people.

    ``settings`` are nested plain data without secrets, ``data`` are the versions of the datasets by source, and
    ``environment`` has the versions of the libraries and the name of the machine, as plain data. ``num_ranks``
    processes train together; the monitors belong to the first. Adapters may write into ``folder``, the run folder. If
    that began as a copy of another run's, ``copied_from`` has the id of that run, after the ids of those that the other
    was copied from.
    """

    run_id: str
    name: str
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    num_ranks: int = 1
    copied_from: Sequence[str] = ()


class NoteKind(StrEnum):
    """The kinds of texts that a tracker receives."""

    EVENT = "event"
    SAMPLE = "sample"


class EndState(StrEnum):
    """The ways in which a start of a run ends: at its end, by a stop before the end, or by an error."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class Tracker(Monitor):
    """Receives the metrics of a run, its description, and texts about it; a monitor of a tool that compares runs.

    - ``begin`` is the first call, once for each start of the run. A sink that has metrics of the same ``run_id``
      continues with them.
    - ``note`` accepts any text. Texts are for people to read: ``rewind`` may keep them.
    - ``flush`` makes the metrics so far as durable as the sink can. The run notes the step of a flush in its folder. If
      metrics were dropped or lost, it calls ``rewind`` with the last noted step, and sends the metrics after that step
      again from its own record, so that every step is recorded once.
    - ``finish`` says how this start ends. Only ``close`` comes after it.
    """

    @abstractmethod
    def begin(self, run: RunDescription) -> None:
        """Open the sink for ``run``."""

    @abstractmethod
    def note(self, step: int, kind: NoteKind, text: str) -> None:
        """Record ``text``, which belongs to ``step``."""

    @abstractmethod
    def flush(self) -> None:
        """Make all metrics so far durable."""

    @abstractmethod
    def finish(self, state: EndState) -> None:
        """Record the end of this start of the run."""


class EventTracker(Tracker):
    """A tracker that distinguishes the kinds of events: it receives ``event`` in place of notes of events."""

    @abstractmethod
    def event(self, step: int, name: str, text: str) -> None:
        """Record an event at ``step``: ``name`` is its class in ``domain.events``, ``text`` is a sentence."""
