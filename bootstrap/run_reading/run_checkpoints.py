"""The checkpoints of a run with their states, for pages and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.state_store.checkpoint_inspection import CheckpointInspector
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.wiring.best_checkpoint import best_step
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.state_store.checkpoint_inspection import CheckpointReport

_LOADED = ("RunStarted", "RolledBack")


@final
class CheckpointList:
    """The checkpoints in the run ``folder``. ``version`` grows with each change that ``has_changed`` finds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = [RunLayout(folder).checkpoints, folder / "pins", folder / "quarantine", folder / "superseded"]
        self._stamp: list[int] | None = None
        self.version = 0

    def has_changed(self) -> bool:
        """Return whether a checkpoint, a pin or the quarantine has changed since the last call."""
        stamp = [_time_of(path) for path in self._places]
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.version += 1
        return True

    def entries(self, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the checkpoints, the newest first.

        ``state`` is ``written`` if all files are there in their sizes, ``verified`` if a start or a roll-back has also
        read it without a difference since it was written, ``saving``, or the defect. ``is_best`` marks the one that
        ``--best`` selects, ``is_on_disk`` is false for copies that are only in the archive.
        """
        try:
            store = CheckpointInspector(hashing=False, count=lambda _: None).store(self._folder)
        except (OSError, StateError):
            return []
        history = _History.of(events)
        best = best_among(store.checkpoints)
        found = []
        for report in store.checkpoints:
            manifest, step = report.manifest, int(report.name.partition("-")[2])
            written = "verified" if history.is_verified(step) else "written"
            found.append(
                {
                    "step": step,
                    "state": report.problems[0].flaw if report.problems else written,
                    "problem": report.problems[0].reason if report.problems else None,
                    "saved": report.saved.isoformat(timespec="seconds") if report.saved else None,
                    "bytes": manifest.num_bytes if manifest else None,
                    "reason": manifest.snapshot.reason if manifest else None,
                    "tokens": manifest.progress.tokens if manifest else None,
                    "is_archived": step in history.archived,
                    "is_best": step == best,
                    "is_pinned": step in store.pinned,
                    "is_encrypted": bool(manifest and manifest.wrapped_key),
                    "is_on_disk": True,
                }
            )
        there = {entry["step"] for entry in found}
        found += [_elsewhere(step, "archived") for step in history.archived - there]
        if history.saving is not None and history.saving not in there:
            found.append(_elsewhere(history.saving, "saving"))
        return sorted(found, key=lambda entry: entry["step"], reverse=True)


def best_among(reports: Iterable[CheckpointReport]) -> int | None:
    """Return the step of the checkpoint that ``--best`` selects, None if none was evaluated."""
    whole = [report for report in reports if not report.problems]
    return best_step([report.manifest.info(report.name) for report in whole if report.manifest is not None])


@final
class _History:
    """The steps of checkpoints by what the events say of them."""

    def __init__(self) -> None:
        self.archived: set[int] = set()
        self.loaded: set[int] = set()
        self.saving: int | None = None

    @classmethod
    def of(cls, events: Sequence[Mapping[str, Any]]) -> _History:
        found = cls()
        for event in events:
            if isinstance(event.get("step"), int):
                found.add(str(event.get("event")), int(event["step"]), event)
        return found

    def add(self, name: str, step: int, event: Mapping[str, Any]) -> None:
        if name in _LOADED:
            self.loaded |= {step} if step else set()
            if name == "RolledBack":  # copies of later steps are deleted
                self.archived = {each for each in self.archived if each <= step}
            self.saving = None
        elif name == "CheckpointStarted":
            self.saving = step
        elif name in ("CheckpointSaved", "CheckpointFailed"):
            self.saving = None
            self.loaded.discard(step)
        elif name == "CheckpointArchived" or (name == "CheckpointMoved" and event.get("target") == "archive"):
            self.archived.add(step)
            deleted = event.get("deleted")
            self.archived -= {each for each in deleted if isinstance(each, int)} if isinstance(deleted, list) else set()
        elif name == "CheckpointMoved" and event.get("source") == "archive":
            self.archived.discard(step)
        if name in ("RunFinished", "RunFailed"):
            self.saving = None

    def is_verified(self, step: int) -> bool:
        return step in self.loaded


def _elsewhere(step: int, state: str) -> dict[str, Any]:
    """Return a checkpoint that is not on the disk: in the archive alone, or not written yet."""
    empty = dict.fromkeys(("problem", "saved", "bytes", "reason", "tokens"))
    nothing = dict.fromkeys(("is_best", "is_pinned", "is_encrypted", "is_on_disk"), False)
    return {"step": step, "state": state, **empty, "is_archived": state == "archived", **nothing}


def _time_of(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
