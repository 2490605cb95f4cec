"""The report of `explain`: the state of a run, the cause of its end and what to try."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.bootstrap.operations.trust import note_trust
from holdfast.bootstrap.run_folder.layout import RECORD, RunLayout
from holdfast.bootstrap.run_folder.post_mortem import STAMP
from holdfast.bootstrap.run_folder.record_file import budget_in, read_record
from holdfast.bootstrap.run_folder.run_lock import holder_of
from holdfast.bootstrap.run_reading.formatting import rough_duration
from holdfast.bootstrap.run_reading.run_state import (
    events_of_last_start,
    last_step,
    seconds_of_silence,
    state_of,
    time_of,
)
from holdfast.configs.error_messages import one_line
from holdfast.domain.errors import StateError
from holdfast.domain.run_end import LifecycleState
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_LONGEST = 4_000  # of a line, which may hold a command to copy
_TOLD = {"from_step", "restored_from"}  # of the history in run.json
_WORDS = {
    "CheckpointFailed": ("save", "failed, and training continued"),
    "CheckpointRejected": ("checkpoint", "damaged and quarantined"),
    "HandlerFailed": ("time", "a handler or monitor failed, and training continued"),
    "MemoryExhausted": ("shortage", "of memory"),
    "ArchiveFailed": ("upload", "to the archive failed"),
    "DataStalled": ("time", "training waited for data for more than a second"),
}


@dataclass(frozen=True, slots=True)
class Story:
    """The contents of a run's files: the events of all its starts, its last known step, the checkpoints' steps."""

    state: LifecycleState
    events: Sequence[Mapping[str, Any]]
    last_step: int
    checkpoints: Sequence[int]
    budget: int | None
    start: Mapping[str, Any]
    returns: Sequence[Mapping[str, Any]]

    @property
    def of_last_start(self) -> Sequence[Mapping[str, Any]]:
        """Return the events of the last start; none if it did not come to its first step."""
        return events_of_last_start(self.start, self.events)

    @property
    def has_trained(self) -> bool:
        """Return whether the last start came to its first step, or to its end if it had no steps to take."""
        return "time" not in self.start or bool(self.of_last_start)  # early versions recorded no start

    @property
    def starts(self) -> Sequence[int]:
        """Return the index of the first event of each process of the run."""
        return [number for number, event in enumerate(self.events) if event.get("event") == "RunStarted"]

    @property
    def last(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the last event of each kind of the last start."""
        return {str(event.get("event")): event for event in self.of_last_start}


def explain(run: Path) -> str:
    """Return the explanation of the run folder ``run``; writes nothing; raises ``StateError`` for another folder."""
    if RunLayout(run).is_unwritten:
        return "\n".join(one_line(line, _LONGEST) for line in _unwritten(run))
    record, layout = read_record(run), RunLayout(run)
    events = list(JsonLines(layout.events).read())
    story = Story(
        state_of(run, record, events),
        events,
        last_step(layout, JsonLines(layout.metrics).read()),
        layout.durable_steps(),
        _steps_of(record),
        record.get("start", {}),
        [
            entry
            for entry in record["history"]
            if isinstance(entry, dict) and {"from_step", "restored_from"} & entry.keys()
        ],
    )
    note = note_trust(run)
    lines = [*_lines(run, story), *([note] if note else [])]
    return "\n".join(one_line(line, _LONGEST) for line in lines)


def _steps_of(record: Mapping[str, Any]) -> int | None:
    steps = budget_in(record).get("steps")
    return steps if isinstance(steps, int) else None


def _lines(run: Path, story: Story) -> Iterator[str]:
    whole = "" if story.budget is None else f" of {story.budget}"
    yield f"{run} · {story.state} · step {story.last_step}{whole}"
    if story.state.is_active and (holder := holder_of(run)) is not None:
        yield f"trained by {holder.describe()}"
    if story.checkpoints:
        lost = max(0, story.last_step - story.checkpoints[-1])
        yield f"checkpoints: {len(story.checkpoints)}, the newest of step {story.checkpoints[-1]}" + (
            f": {counted(lost, 'step')} after it to be taken again" if lost and not story.state.is_active else ""
        )
    else:
        yield "checkpoints: none"
    if len(story.starts) > 1:
        steps = ", ".join(str(story.events[number].get("step")) for number in story.starts[-10:])
        yield f"started {len(story.starts)} times, at steps {steps}"
    for entry in story.returns[-10:]:
        if isinstance(went := entry.get("from_step"), dict):
            yield f"went back from step {went.get('left')} to {went.get('step')} by --from-step at {entry.get('time')}"
        else:
            yield f"run.json was put back as {entry.get('restored_from')} holds it at {entry.get('time')}"
    counts = Counter(str(event.get("event")) for event in story.events)
    yield from (f"{counted(counts[kind], noun)} {words}" for kind, (noun, words) in _WORDS.items() if counts[kind])
    yield from _restarts(run)
    yield from _reasons(run, story)


def _restarts(run: Path) -> Iterator[str]:
    deaths = list(JsonLines(RunLayout(run).restarts).read())
    if not deaths:
        return
    causes = Counter(str(death.get("cause")) for death in deaths)
    counts = ", ".join(f"{cause} ({count})" for cause, count in causes.most_common(5))
    lost = sum(number for death in deaths if isinstance(number := death.get("lost_steps"), int))
    steps = counted(lost, "step")
    yield f"under the supervisor {counted(len(deaths), 'start')} died, with {steps} after a checkpoint: {counts}"
    if (reason := deaths[-1].get("gave_up")) is not None:
        yield f"the supervisor gave up: {reason}"


def _unwritten(run: Path) -> Iterator[str]:
    """Yield the lines about a run folder that a start has locked without writing anything else yet."""
    state = state_of(run, {}, [])
    yield f"{run} · {state} · step 0"
    if state.is_active:
        if (holder := holder_of(run)) is not None:
            yield f"by {holder.describe()}"
        yield from _silence(run, state)
        return
    yield f"why: the last start ended before it wrote {RECORD}: nothing was trained, and nothing is lost"
    yield "what to try: start the same command again"


def _silence(run: Path, state: LifecycleState) -> Iterator[str]:
    """Yield the lines about a run that a process holds without a sign of life."""
    if state not in (LifecycleState.SUSPENDED, LifecycleState.SILENT):
        return
    seconds, holder = seconds_of_silence(run), holder_of(run)
    since = "" if seconds is None else f"no sign of life for {rough_duration(seconds)}: "
    if state is LifecycleState.SUSPENDED and holder is not None:
        yield f"why: {since}the process is suspended, as by Ctrl-Z"
        yield f"what to try: fg in its terminal, or kill -CONT {holder.pid}; it continues where it is"
        return
    yield f"why: {since}its lock is held, but it sends no heartbeats"
    yield "what to try: look whether its machine, its disk and its process answer; without them, end the process"


def _reasons_of_start(story: Story) -> Iterator[str]:
    """Yield the lines about a start that did not train: its last phase, and the reason for its end."""
    phase = story.start.get("phase", "starting")
    if story.state.is_active:
        yield f"since {story.start['time']}, now {phase}"
    elif (error := story.start.get("error")) is not None:
        yield f"why: the last start ended while it was {phase}: {error}"
        yield "what to try: start the same command again once the cause is removed"
    elif (reason := story.start.get("stopped")) is not None:
        yield f"why: {reason}, while it was {phase}; the same command continues"
    else:
        yield f"why: the process ended without a message while it was {phase}: {_silent_causes(story)}"
        then = "; it continues from the newest checkpoint" if story.checkpoints else "; it had trained nothing yet"
        yield f"what to try: start the same command again{then}"


def _silent_causes(story: Story) -> str:
    if (shortage := story.start.get("memory")) is not None:
        return f"most likely a lack of memory (dmesg reports it), as {shortage}"
    return "kill -9, a lack of memory (dmesg reports it), or a power cut"


def _reasons(run: Path, story: Story) -> Iterator[str]:
    yield from _silence(run, story.state)
    if not story.has_trained:
        yield from _reasons_of_start(story)
        return
    if story.state.is_active:
        return
    failures = _post_mortem(run, story)
    if not failures or story.state is not LifecycleState.FAILED:
        yield from _reasons_of_end(run, story)
    for folder, cause in failures:
        where = f"rank {cause['rank']}" if cause["ranks"] > 1 else "cause"
        yield f"{where}: {cause['error']}: {cause['message']}"
        yield f"    after step {cause['step']}; more in {folder}"
    if failures:
        yield "what to try:"
        yield from (f"    - {words}" for words in failures[0][1]["what_to_try"])
        yield f"    - the same command continues from step {max(story.checkpoints, default=0)}"


def _reasons_of_end(run: Path, story: Story) -> Iterator[str]:
    """Yield the lines about the end of a start that has trained, as far as its events tell it."""
    last = story.last
    match story.state:
        case LifecycleState.STOPPED:
            yield f"why: {last['StopRequested'].get('reason')}; the same command continues"
        case LifecycleState.STOPPED_EARLY:
            early = next(event for event in story.of_last_start if event.get("is_early") is True)
            yield f"why: {early.get('reason')}"
            yield "what to try: raise recovery.early_stopping.patience, or set it to 0, to train on"
        case LifecycleState.FINISHED if "DataEnded" in last:
            yield "why: the data have ended"
        case LifecycleState.HUNG:
            yield f"why: {last['RunStalled'].get('reason')}"
            stacks = sorted(RunLayout(run).stacks.glob("*.txt"), key=lambda path: path.stat().st_mtime)
            yield from (f"    where each thread was: {path}" for path in stacks[-1:])
            yield "what to try: start the same command again; it continues from the newest checkpoint"
        case LifecycleState.CRASHED:
            yield f"why: the process ended without a message: {_silent_causes(story)}"
            yield "what to try: start the same command again; it continues from the newest checkpoint"
        case LifecycleState.FAILED:
            yield f"why: {last['RunFailed'].get('error')}"
            yield "what to try: start the same command again once the cause is removed"


def _post_mortem(run: Path, story: Story) -> Sequence[tuple[Path, Mapping[str, Any]]]:
    """Return the post-mortem folders of the last start with their causes, the rank that wrote first at the front."""
    attempts = sorted(RunLayout(run).post_mortem.glob("*/"))
    before = story.events[: len(story.events) - len(story.of_last_start)]
    stamp = max(map(_stamp, before), default="")
    if not attempts or attempts[-1].name < stamp:
        return []
    causes = sorted(attempts[-1].glob("rank*/cause.json"), key=lambda path: path.stat().st_mtime)
    return [(path.parent, _cause(path)) for path in causes]


def _cause(path: Path) -> Mapping[str, Any]:
    try:
        cause = parse_json(read_regular(path))
        return {name: cause[name] for name in ("rank", "ranks", "error", "message", "step", "what_to_try")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or f"it is damaged ({type(error).__name__})"
        msg = f"{path} cannot be read: {why}"
        raise StateError(msg) from error


def _stamp(event: Mapping[str, Any]) -> str:
    time = time_of(event)
    return "" if time is None else time.astimezone(UTC).strftime(STAMP)
