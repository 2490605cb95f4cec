"""Builds the watchdog of a run and its reaction to a hang."""

from __future__ import annotations

import faulthandler
import sys
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.heartbeats import HeartbeatFiles
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.handlers.watchdog import Watchdog
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.domain.errors import StateError
from holdfast.domain.events import RunStalled
from holdfast.domain.fault_tolerance.liveness import Activity, Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from holdfast.application.inbox import Inbox
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.commands import ReportStall
    from holdfast.ports.process_group import ProcessGroup

# The activity by the module of the innermost frame that is in this table, and by the function if it is given.
_DOING = {
    "holdfast.application.data.feed": Activity.DATA,
    "holdfast.application.training.evaluator": Activity.EVALUATION,
    "holdfast.application.checkpointer": Activity.CHECKPOINT,
    "torch._dynamo": Activity.COMPILATION,
    "torch._inductor": Activity.COMPILATION,
}


def build_watchdog(
    settings: TrainSettings,
    folder: Path,
    group: ProcessGroup,
    inbox: Inbox,
    *,
    report: Callable[[str], object],
    leave: Callable[[], object] | None,
) -> Watchdog:
    """Return the watchdog of this rank of the run in ``folder``; it calls ``leave`` to end a process that hangs."""
    limits = settings.recovery.watchdog
    patience = Timeouts(limits.min_seconds, limits.factor, limits.slow_seconds)
    heartbeats = HeartbeatFiles(RunLayout(folder).heartbeats, group.rank, group.size)
    alarm = RunAlarm(folder, group.rank, inbox, report=report, leave=leave)
    return Watchdog(patience, group.rank, heartbeats, alarm, doing=doing_of)


def doing_of(thread: int) -> Activity:
    """Return the current activity of the thread with identifier ``thread``, by its stack."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001  documented in spite of its name
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        doing = _DOING.get(module) or _DOING.get(".".join(module.split(".")[:2]))
        if doing is Activity.CHECKPOINT and frame.f_code.co_name == "flush":
            return Activity.ARCHIVE
        if doing is not None:
            return doing
        frame = frame.f_back
    return Activity.STEP


@final
class RunAlarm:
    """Writes the stacks of all threads to ``stacks/`` of the run folder and asks the loop to publish ``RunStalled``.

    ``give_up`` writes that event itself, because the loop does not respond, and then calls ``leave``, unless it is
    None, to end the process.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        inbox: Inbox,
        *,
        report: Callable[[str], object],
        leave: Callable[[], object] | None,
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._inbox = inbox
        self._report = report
        self._leave = leave

    def ring(self, report: ReportStall) -> None:
        """Write the stacks, and report their path."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = RunLayout(self._folder).stacks / f"rank{self._rank}-{stamp}.txt"
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.write(f"{report.reason}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError as error:
            self._report(f"the stacks of a run that hangs cannot be written to {path}: {error.strerror}")
        self._report(f"{report.reason}; the stacks of all threads are in {path}")
        if self._rank == 0:
            self._inbox.post(report)

    def give_up(self, report: ReportStall) -> None:
        """End the process."""
        if self._leave is None:
            return
        if self._rank == 0:
            record = {"time": datetime.now(UTC).isoformat(), "event": RunStalled.__name__, **asdict(report)}
            try:
                with closing(JsonLines(RunLayout(self._folder).events)) as events:
                    events.append(record)
            except StateError as error:
                sys.stderr.write(f"{error}\n")
        sys.stderr.write(f"error: {report.reason}: start the same command again\n")
        sys.stderr.flush()
        self._leave()
