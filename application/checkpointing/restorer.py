"""Restores a trainable from a checkpoint on all ranks."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, final

from holdfast.domain.errors import StateError
from holdfast.domain.events import CheckpointRejected
from holdfast.ports.state_store import Loaded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.application.checkpointing.memory_tier import MemoryTier
    from holdfast.domain.training.progress import Progress
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.state_store import CheckpointInfo, OpenFile, StateStore

_log = logging.getLogger(__name__)


@final
class Restorer:
    """Restores ``trainable`` from ``store`` or ``memory``; all ranks of ``group`` call each method.

    A checkpoint is verified while it is read. The first rank reads it before the other ranks, since it quarantines
    damaged checkpoints and fetches archived ones. A checkpoint that one rank rejects is used by none.
    ``is_unfinished`` says that a restore is under way or was interrupted by an error: the state is inconsistent then.
    """

    def __init__(
        self, store: StateStore, trainable: Trainable, bus: EventBus, group: ProcessGroup, memory: MemoryTier
    ) -> None:
        self._store = store
        self._trainable = trainable
        self._bus = bus
        self._group = group
        self._memory = memory
        self.is_unfinished = False

    def from_store(self, *, at_most: int | None = None) -> CheckpointInfo | None:
        """Restore the newest valid checkpoint, of step ``at_most`` or before; return it, None if there is none.

        Raises ``StateError`` if another rank finds a checkpoint of another step or cannot restore it, and if all turn
        out to be damaged after part of the state has been overwritten.
        """
        if self._group.size > 1:
            loaded = self._restore_together(at_most)
        else:
            loaded = self._restore(at_most)
            if loaded.info is None and self.is_unfinished:
                raise _lost(rejected.name for rejected in loaded.rejected)
        if loaded.info is not None:
            self.is_unfinished = False
        return loaded.info

    def from_memory(self, step: int) -> Progress | None:
        """Restore the copy in memory if it is of ``step`` or before; return its progress, None if it was not restored.

        Only for a process that trains alone, as a copy has the state of one rank. The restored state equals that of the
        checkpoint bit for bit.
        """
        held = self._memory.newest
        if held is None or held.progress.step > step:
            return None
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(self._memory.unpacked())
            except StateError as problem:
                _log.warning("the copy in memory cannot be used, so the checkpoint on disk is: %s", problem)
                return None
            with self._begun():
                self._trainable.restore(folder)
        return held.progress

    def roll_back_to(self, step: int) -> Progress | None:
        """Restore the newest state of ``step`` or before and supersede later checkpoints; return its progress.

        Returns None, with nothing changed, if there is none.
        """
        progress = self.from_memory(step) if self._group.size == 1 else None
        if progress is None:
            info = self.from_store(at_most=step)
            if info is None:
                return None
            self._memory.clear()  # its copy may be of a step that is rolled back
            progress = info.progress
        with self._begun():
            if self._group.rank == 0:
                self._store.supersede(progress.step)
        return progress

    def _take_over(self, folder: Path, open_file: OpenFile) -> None:
        self.is_unfinished = True
        self._trainable.restore(folder, open_file=open_file)

    def _restore(self, at_most: int | None) -> Loaded:
        loaded = self._store.restore(self._take_over, at_most=at_most)
        for rejected in loaded.rejected:
            self._bus.publish(CheckpointRejected(rejected.name, rejected.reason, rejected.location))
        return loaded

    def _restore_together(self, at_most: int | None) -> Loaded:
        """Restore the same checkpoint on each rank, an older one than any that a rank rejects."""
        rejected: list[str] = []
        while True:
            loaded, problem = self._restore_in_turn(at_most)
            rejected += [each.name for each in loaded.rejected]
            step = 0 if loaded.info is None else loaded.info.progress.step
            own = _RankReport(step, rejected, problem, self.is_unfinished)
            reports = [_RankReport(**json.loads(text)) for text in self._group.gather(json.dumps(asdict(own)))]
            if problems := [f"rank {rank}: {report.problem}" for rank, report in enumerate(reports) if report.problem]:
                raise StateError(problem or problems[0])
            steps = [report.step for report in reports]
            if 0 in steps and any(report.is_unfinished and report.rejected for report in reports):
                raise _lost(name for report in reports for name in report.rejected)
            if len(set(steps)) == 1:
                return loaded
            if at_most == min(steps) or not any(report.rejected for report in reports):
                known = ", ".join(map(str, steps))
                msg = f"the ranks found checkpoints of steps {known}: run.dir must be one folder of all hosts"
                raise StateError(msg)
            at_most = min(steps)

    def _restore_in_turn(self, at_most: int | None) -> tuple[Loaded, str]:
        """Restore as ``_restore`` does, on the first rank first; return the result and the problem, if any."""
        loaded, problem = Loaded(None, None), ""
        if self._group.rank > 0:
            self._group.barrier()
        try:
            loaded = self._restore(at_most)
        except StateError as error:
            problem = str(error)
        if self._group.rank == 0:
            self._group.barrier()
        return loaded, problem

    @contextmanager
    def _begun(self) -> Iterator[None]:
        self.is_unfinished = True
        yield
        self.is_unfinished = False


@dataclass(frozen=True, slots=True)
class _RankReport:
    """The report of a rank: the step it restored (0 if none), the checkpoints it rejected, and the problem, if any."""

    step: int
    rejected: Sequence[str]
    problem: str
    is_unfinished: bool


def _lost(names: Iterable[str]) -> StateError:
    known = ", ".join(dict.fromkeys(names)) or "the checkpoints"
    msg = (
        f"{known} failed verification while being loaded, and no other checkpoint is left: they were "
        "moved to quarantine, and the same command starts again at step 0"
    )
    return StateError(msg)
