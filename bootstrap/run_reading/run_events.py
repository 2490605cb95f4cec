"""The events of a run, read from its folder, as sentences and as marks on its curves."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, final

from holdfast.application.handlers.log_events import sentence_of
from holdfast.domain import events
from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.errors import TrainingError
from holdfast.domain.resources.balance_policy import Knob
from holdfast.domain.training.step_outcome import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from holdfast.bootstrap.run_reading.growing_file import GrowingRecords

_KINDS = {
    "RunStarted": ("start", "info"),
    "RunFinished": ("end", "good"),
    "RunFailed": ("failure", "error"),
    "StopRequested": ("stop", "info"),
    "UpdateDropped": ("update dropped", "warning"),
    "MemoryExhausted": ("out of memory", "warning"),
    "BatchSplit": ("micro-batch", "info"),
    "ResourcesAdjusted": ("resources", "info"),
    "EvaluationCompleted": ("evaluation", "info"),
    "CheckpointSaved": ("checkpoint", "good"),
    "CheckpointFailed": ("checkpoint not saved", "error"),
    "CheckpointArchived": ("archive", "good"),
    "ArchiveFailed": ("not archived", "warning"),
    "CheckpointMoved": ("checkpoint moved", "info"),
    "CheckpointRejected": ("checkpoint rejected", "error"),
    "ContractWeakened": ("contract", "warning"),
    "RolledBack": ("roll-back", "warning"),
    "RollBackSkipped": ("roll-back skipped", "warning"),
    "DataStalled": ("data stall", "warning"),
    "DataDrifted": ("drift", "warning"),
    "RunStalled": ("stall", "warning"),
    "DataEnded": ("end of data", "info"),
    "HandlerFailed": ("handler failed", "warning"),
    "SuiteEvaluated": ("suites", "good"),
    "SuiteFailed": ("suites failed", "warning"),
}
MARKED = frozenset(_KINDS) - {
    "EvaluationCompleted", "CheckpointSaved", "CheckpointArchived", "CheckpointMoved", "RunFinished", "BatchSplit",
    "ResourcesAdjusted", "DataStalled", "SuiteEvaluated",
}  # fmt: skip
"""The events that are marks on the curves."""
_ENUMS: Mapping[str, type[StrEnum]] = {"source": Tier, "target": Tier, "knob": Knob}


@final
@dataclass(frozen=True, slots=True)
class RunNote:
    """A fact about a run: ``kind`` is a phrase, ``level`` is info, good, warning or error, ``text`` is a sentence.

    ``time`` is in ISO's form, UTC. ``is_marked`` says that it belongs on the curves, at ``step``. Times and steps are
    None if they are not recorded.
    """

    time: str | None
    step: int | None
    kind: str
    level: str
    text: str
    is_marked: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the note as JSON."""
        return {
            "time": self.time,
            "step": self.step,
            "kind": self.kind,
            "level": self.level,
            "text": self.text,
            "marked": self.is_marked,
        }


@final
class EventNotes:
    """The notes of the events in ``records``; each event is put into words once, as a long run has many."""

    def __init__(self, records: GrowingRecords) -> None:
        self._records = records
        self._notes: list[RunNote | None] = []
        self._generation = self._num_read = 0

    def all(self) -> list[RunNote]:
        """Return the notes of the events that are in the records now."""
        records = self._records
        if records.generation != self._generation:
            self._notes, self._generation, self._num_read = [], records.generation, 0
        if num_new := min(records.num_read - self._num_read, len(records.records)):
            self._notes += map(note_of, records.records[-num_new:])
        self._num_read = records.num_read
        del self._notes[: len(self._notes) - len(records.records)]
        return [note for note in self._notes if note is not None]


def note_of(record: Mapping[str, Any]) -> RunNote | None:
    """Return a line of ``events.jsonl`` as a note; None for the begin of a save."""
    name = str(record.get("event"))
    if name == "CheckpointStarted":
        return None
    kind, level = _KINDS.get(name, (_words_in(name), "info"))
    step = record.get("step")
    is_marked = name in MARKED
    if name == "RunStarted" and step:
        kind = "resume"
    elif name == "RunStarted":
        is_marked = False
    if name == "RolledBack" and isinstance(record.get("from_step"), int):
        step = record["from_step"]
    time = record.get("time")
    return RunNote(
        time if isinstance(time, str) else None,
        step if isinstance(step, int) else None,
        kind,
        level,
        _sentence(name, record),
        is_marked,
    )


def _sentence(name: str, record: Mapping[str, Any]) -> str:
    step = record.get("step")
    match name:
        case "RunStarted":
            return f"resumed at step {step}" if step else "started"
        case "RunFinished":
            return f"ended at step {step}"
        case "DataEnded":
            return f"the data end at step {step}"
        case "EvaluationCompleted":
            loss, bits = record.get("loss"), record.get("bits_per_byte")
            numbers = [f"loss {loss:.4f}"] if isinstance(loss, float) else []
            numbers += [f"{bits:.4f} bits per byte"] if isinstance(bits, float) else []
            accuracy = record.get("reward_accuracy")
            numbers += [f"{accuracy:.1%} of the pairs in the right order"] if isinstance(accuracy, float) else []
            return f"step {step} · evaluated: {', '.join(numbers) or 'no number'}"
    try:
        return sentence_of(_event(name, record)) or _words_in(name)
    except (AttributeError, KeyError, ValueError, TypeError):  # of another version
        return f"{_words_in(name)}: " + ", ".join(f"{key} {value}" for key, value in _details(record).items())


def _event(name: str, record: Mapping[str, Any]) -> events.Event:
    """Return the event that ``record`` describes, with errors in words."""
    kind = vars(events)[name]
    values: dict[str, Any] = {}
    for field in fields(kind):
        key = "during" if field.name == "event" else field.name
        if field.name == "progress":
            values["progress"] = Progress(int(record["step"]), int(record.get("tokens", 0)))
        elif field.name == "error":
            values["error"] = _error(str(record["error"]))
        elif field.name in _ENUMS:
            values[field.name] = _ENUMS[field.name](record[key])
        elif key in record or field.default is MISSING:
            values[field.name] = record[key]
    event: events.Event = kind(**values)
    return event


def _error(text: str) -> Exception:
    """Return an error for the sentence; the errors of this package explain themselves without their names."""
    name, _, words = text.partition(": ")
    is_ours = name.endswith("Error") and name in _our_errors()
    return TrainingError(words) if is_ours else RuntimeError(text)


def _our_errors() -> set[str]:
    names, waiting = {TrainingError.__name__}, [TrainingError]
    while waiting:
        below = waiting.pop().__subclasses__()
        names |= {each.__name__ for each in below}
        waiting += below
    return names


def _words_in(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _details(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("event", "time", "tokens", "samples")}


def notes_of_history(record: Mapping[str, Any]) -> list[RunNote]:
    """Return the changes that people made between two starts."""
    notes = []
    for entry in record.get("history", []):
        if not isinstance(entry, dict):
            continue
        time = entry.get("time") if isinstance(entry.get("time"), str) else None
        if isinstance(entry.get("copied_from"), str):
            text = f"this is a copy of {entry['copied_from']}, with another id from here on"
            notes.append(RunNote(time, None, "copy", "info", text))
        if isinstance(entry.get("restored_from"), str):
            text = f"run.json was lost or damaged, and was put back as {entry['restored_from']} holds it"
            notes.append(RunNote(time, None, "record", "warning", text))
        if isinstance(entry.get("changed"), dict):
            text = f"settings changed: {', '.join(entry['changed'])}"
            notes.append(RunNote(time, None, "settings", "info", text))
        if "data" in entry:
            notes.append(RunNote(time, None, "data", "warning", f"continued with other data: {entry['data']}"))
        if isinstance(went := entry.get("from_step"), dict):
            text = f"went back from step {went.get('left')} to {went.get('step')} by --from-step"
            notes.append(RunNote(time, went.get("step"), "roll-back", "warning", text, is_marked=True))
    return notes


def notes_of_start(start: Mapping[str, Any]) -> list[RunNote]:
    """Return the reason why the last start ended before it trained."""
    if "error" not in start:
        return []
    text = f"the last start ended while it was {start.get('phase', 'starting')}: {start['error']}"
    return [RunNote(start.get("time"), None, "failed start", "error", text)]


def note_of_restart(record: Mapping[str, Any]) -> RunNote:
    """Return the note on a death of a supervised run."""
    words = f"a start crashed: {record.get('cause')}"
    if isinstance(lost := record.get("lost_steps"), int):
        words += f", {lost} steps after its last checkpoint"
    if record.get("gave_up"):
        words += f"; the supervisor gave up: {record['gave_up']}"
    step = record.get("step")
    time = record.get("time")
    return RunNote(
        time if isinstance(time, str) else None, step if isinstance(step, int) else None, "crash", "error", words, True
    )
