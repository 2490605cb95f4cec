"""Signals for the ranks of a run on a cluster, and the exit codes with which they end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_signal

if TYPE_CHECKING:
    from collections.abc import Sequence

_CALL_SECONDS = 60.0
_MISTAKES = {ExitCode.CONFIGURATION, ExitCode.DATA, ExitCode.STATE}


@final
@dataclass(slots=True)
class _Start:
    """The ranks of one start: those that run, and the exit codes of those that have ended, first one first."""

    name: str = ""
    size: int = 0
    running: set[int] = field(default_factory=set)
    codes: list[int] = field(default_factory=list)
    has_failed: bool = False


@final
@dataclass(frozen=True, slots=True)
class RunStatus:
    """The number of starts that failed and of ranks that run, and the exit codes of the run and of the last failure.

    The code of the run is None until its end is decided.
    """

    num_failed: int
    num_running: int
    decided: int | None
    failure: int | None


@final
class RankCoordinator:
    """Passes signals from the command of a run to its ranks, and their exit codes to the command.

    The end of one rank decides the end of the run if another start would end in the same way: by a mistake in settings,
    data or run folder, or by a signal that the command has passed on. The run has finished when all ranks have.
    Anything else, also a signal from elsewhere, as a machine gets that is taken away, asks for another start.
    """

    def __init__(self) -> None:
        self._signals: list[int] = []
        self._start = _Start()
        self._num_failed = 0
        self._decided: int | None = None
        self._failure: int | None = None

    def send(self, number: int) -> None:
        """Have the signal ``number`` delivered to all ranks, which end by it."""
        self._signals.append(number)
        self._failure = None

    def signals(self) -> Sequence[int]:
        """Return the signals for the ranks, first one first."""
        return tuple(self._signals)

    def begin(self, start: str, rank: int, size: int) -> bool:
        """Note that ``rank`` of the ``size`` ranks of ``start`` begins; return False if the run is over or to stop."""
        if self._start.name != start:
            self._start = _Start(start, size)
            self._failure = None
        if self._decided is not None or self._signals:
            return False
        self._start.running.add(rank)
        return True

    def end(self, start: str, rank: int, code: int) -> None:
        """Note that ``rank`` of ``start`` has ended with the exit ``code``; an earlier start is ignored."""
        if self._start.name != start:
            return
        self._start.running.discard(rank)
        self._start.codes.append(code)
        if self._decided is not None:
            return
        if code != ExitCode.FINISHED:
            self._failure = self._failure if self._failure is not None and self._failure > 1 else code
            self._decided = code if self._is_final(code) else None
        elif self._start.codes == [ExitCode.FINISHED] * self._start.size:
            self._decided = ExitCode.FINISHED

    def fail(self, start: str) -> None:
        """Note that the ranks of ``start`` have to be started again."""
        if self._start.name == start and not self._start.has_failed:
            self._start.has_failed = True
            self._num_failed += 1

    def has_ended(self, start: str) -> bool:
        """Return whether the run is over, or all ranks of ``start`` have ended."""
        others = self._start.name != start or len(self._start.codes) == self._start.size
        return self._decided is not None or others

    def status(self) -> RunStatus:
        """Return the status of the run."""
        return RunStatus(self._num_failed, len(self._start.running), self._decided, self._failure)

    def _is_final(self, code: int) -> bool:
        """Return whether a new start would not mend the end with ``code``, or is not wanted."""
        return code in _MISTAKES or code in {code_of_signal(number) for number in self._signals}


@final
class RemoteCoordinator:
    """A ``RankCoordinator`` that runs as an ``actor`` of ``ray``.

    Each method raises the ``RayError`` of a call that fails, or that takes a minute.
    """

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor

    def send(self, number: int) -> None:
        """Have the signal ``number`` delivered to all ranks."""
        self._await(self._actor.send.remote(number))

    def signals(self) -> Sequence[int]:
        """Return the signals for the ranks, first one first."""
        signals: Sequence[int] = self._await(self._actor.signals.remote())
        return signals

    def begin(self, start: str, rank: int, size: int) -> bool:
        """Note that ``rank`` of the ``size`` ranks of ``start`` begins; return False if the run is over or to stop."""
        return bool(self._await(self._actor.begin.remote(start, rank, size)))

    def end(self, start: str, rank: int, code: int) -> None:
        """Note that ``rank`` of ``start`` has ended with the exit ``code``."""
        self._await(self._actor.end.remote(start, rank, code))

    def fail(self, start: str) -> None:
        """Note that the ranks of ``start`` have to be started again."""
        self._await(self._actor.fail.remote(start))

    def has_ended(self, start: str) -> bool:
        """Return whether the run is over, or all ranks of ``start`` have ended."""
        return bool(self._await(self._actor.has_ended.remote(start)))

    def status(self) -> RunStatus:
        """Return the status of the run."""
        status: RunStatus = self._await(self._actor.status.remote())
        return status

    def _await(self, reference: Any) -> Any:
        return self._ray.get(reference, timeout=_CALL_SECONDS)


Coordinator = RankCoordinator | RemoteCoordinator
