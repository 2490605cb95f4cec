"""The folder of a run: its lock, and the record of its settings and choices."""

from __future__ import annotations

import os
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, final
from uuid import uuid4

from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.bootstrap.run_folder.found_paths import DIRECTORY, moved_elsewhere
from holdfast.bootstrap.run_folder.layout import RECORD, RunLayout
from holdfast.bootstrap.run_folder.record_file import (
    RULES,
    SCHEMA,
    changes_since,
    is_only_study,
    read_record,
    replace_record,
    restore_record,
    rules_of,
    stored_record,
    text_of,
)
from holdfast.bootstrap.run_folder.run_lock import take_lock
from holdfast.configs.run_names import is_below, is_identity, source_of_path
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.fault_tolerance.remedies import FRESH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRAINING = "training"
DATA_VERSIONS = "data_versions"
"""The versions of datasets that the starts of a run have read, the newest last; earlier records lack it."""
# Further settings that must be equal on all ranks of a run.
_EVERYONES = ("optimizer", "run.budget", "evaluation", "state_store", "model.gradient_checkpointing")


@final
class RunFolder:
    """``run.json`` and the lock of one run folder; opening it makes this process its only writer until ``close``.

    The lock belongs to the operating system (flock), which releases it at any end of the process. Raises
    ``StateError`` if the folder cannot be used, and ``ConfigurationError`` if it is that of a study.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if is_only_study(path):
            msg = f"{path} is the folder of a study: give the run another name with run.name, or continue it by tune"
            raise ConfigurationError(msg)
        self._lock = take_lock(path)
        self.record: dict[str, Any] = {}
        self.settings_before: Mapping[str, Any] | None = None
        self.copied_from: str | None = None
        self._kept: dict[str, Any] = {}
        try:
            _refuse_links(RunLayout(path))
            self._restored = restore_record(path)
            self._separate_copy()
        except BaseException:
            self.close()
            raise

    def began_with(self) -> Mapping[str, Any] | None:
        """Return the settings of the run as recorded last, None if none have been accepted yet."""
        return began_with(self.path)

    def begin(self, settings: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
        """Record ``settings`` (plain, secrets masked), or check that they continue the run in this folder.

        ``origins`` are recorded beside them: the file, variable or command line that each setting comes from.
        Settings, choices and facts stay in ``record`` until ``write``, so a start that fails before leaves no run here;
        ``enter`` and ``fail`` only record how far it came. Raises ``ConfigurationError`` that names the first
        setting which would make another run.
        """
        if RunLayout(self.path).record.exists():
            self.record = read_record(self.path)
        self._kept = deepcopy(self.record)
        if not self.record or self.record.get("start", {}).get("is_first"):
            self._refuse_orphans()
            blank: dict[str, Any] = {"schema": SCHEMA, "created": _now(), "auto": {}, "facts": {}, "history": []}
            self.record = blank | {"id": self.record["id"]} if self.record else blank
        else:
            self.settings_before = self.record["settings"]
            changes = changes_since(self.record["settings"], settings)
            others = [key for key in changes if _makes_another_run(key, changes[key], settings)]
            if refused := moved_elsewhere(others, self.record, self.path, settings):
                # another kind has other settings, which the user has not changed
                key = min(refused, key=lambda key: not key.endswith(".kind"))
                old, new = ("not set" if value is None else repr(value) for value in changes[key])
                msg = (
                    f"{key} was {old} when the run in {self.path} began and is {new} now: put it back, "
                    f"give the new run another run.name, or set the old one aside with {FRESH}"
                )
                raise ConfigurationError(msg)
            if changes:
                self.record["history"].append({"time": _now(), "changed": changes})
        self.record["settings"] = dict(settings)
        self.record.pop("origins", None)
        if origins is not None:
            self.record["origins"] = dict(origins)
        self.record.setdefault("id", uuid4().hex)
        self.record |= {"folder": str(self.path.absolute()), DIRECTORY: str(Path.cwd())}
        is_first = self.settings_before is None
        self._kept = deepcopy(self.record) if is_first else self._kept
        self.record["start"] = {"time": datetime.now(UTC).isoformat(), "is_first": is_first}

    def enter(self, phase: str) -> None:
        """Record in ``run.json`` that this start has reached ``phase``, without any other change."""
        self.record["start"]["phase"] = phase
        replace_record(self.path, text_of(self._kept | {"start": self.record["start"]}))

    def note(self, entry: Mapping[str, Any]) -> None:
        """Add ``entry``, an action on the run, to the history in ``run.json``, with the time."""
        history = [*self._kept["history"], {"time": _now(), **entry}]
        self._kept = self._kept | {"history": history}
        replace_record(self.path, text_of(self._kept))

    def fail(self, why: str, *, key: str = "error") -> bool:
        """Record in ``run.json`` the ``error`` that ended this start, or why it was ``stopped``, before ``write``."""
        if self.record["start"].get("phase") in (None, TRAINING):
            return False
        self.record["start"][key] = why
        with suppress(StateError):
            self.enter(self.record["start"]["phase"])
        return True

    def decide(self, name: str, value: str, reason: str) -> str:
        """Return the recorded choice for the ``auto`` setting ``name``; without one, record and return ``value``."""
        decided = self.record["auto"].setdefault(name, {"value": value, "reason": reason})
        return str(decided["value"])

    def hold_to(self, name: str, value: str, remedy: str) -> None:
        """Record the fact ``name``; raises ``StateError`` if the run began with another value."""
        stored = self.record["facts"].setdefault(name, value)
        if stored != value:
            msg = f"the {name} is not the one that the run in {self.path} began with: {remedy}"
            raise StateError(msg)

    def rules(self) -> dict[str, int]:
        """Return the version of each rule that the run follows, and record those of a new run.

        Raises ``StateError`` if the run began with a version that is not known here.
        """
        recorded = rules_of(self.record) if self.settings_before is not None else dict(RULES)
        if newer := [name for name, version in recorded.items() if version > RULES[name]]:
            msg = f"the run in {self.path} began with a newer holdfast ({newer[0]}): upgrade to continue it"
            raise StateError(msg)
        self.record["rules"] = recorded
        return recorded

    def note_versions(self, entries: Sequence[Mapping[str, str]]) -> None:
        """Record the versions of data that were read, also in what a start that fails leaves behind."""
        self.record[DATA_VERSIONS] = self._kept[DATA_VERSIONS] = list(entries)

    def note_changed_data(self, how: str) -> None:
        """Record that the run continues on purpose with changed data; ``how`` describes the difference."""
        self.record["history"].append({"time": _now(), "data": how})

    @property
    def num_data_changes(self) -> int:
        """Return the number of times that the run has continued on purpose with other data."""
        return sum("data" in entry for entry in self.record["history"])

    @property
    def opening_remarks(self) -> Sequence[str]:
        """Return a sentence if the record was put back, and one if the folder is a copy of another run."""
        text = (
            f"this is a copy of {self.copied_from}, which is still there: it is a run of its own now, with another id "
            "(a folder that was moved, not copied, continues the same run)"
        )
        return [*filter(None, [self._restored]), *([] if self.copied_from is None else [text])]

    def _separate_copy(self) -> None:
        """Give a copy of a run whose original is still at its place an id of its own.

        Trackers, ledger and archive know a run by its id: two runs of one id would replace each other's data.
        """
        try:
            record = stored_record(self.path)
            former, identity, here = record["folder"], record["id"], str(self.path.absolute())
        except (StateError, KeyError):  # there is none, or of an earlier version; what is damaged is found later
            return
        if not isinstance(former, str) or former == here or not _is_at(Path(former), identity, self.path):
            return
        history = [*record["history"], {"time": _now(), "copied_from": former, "id": identity}]
        replace_record(self.path, text_of(record | {"id": uuid4().hex, "folder": here, "history": history}))
        self.copied_from = former
        with suppress(OSError):
            RunLayout(self.path).trackers.unlink(missing_ok=True)  # the new run of each lacks all metrics

    def _refuse_orphans(self) -> None:
        if RunLayout(self.path).holds_checkpoints:
            msg = f"{self.path} holds checkpoints, none with a sound copy of the {RECORD} that it lacks: set it aside "
            msg += f"with {FRESH}"
            raise StateError(msg)

    def as_json(self) -> str:
        """Return the text that ``write`` writes."""
        return text_of(self.record)

    def write(self) -> None:
        """Replace ``run.json`` atomically: the run has begun."""
        self.record["start"] = {k: v for k, v in self.record["start"].items() if k != "is_first"} | {"phase": TRAINING}
        replace_record(self.path, self.as_json())

    def close(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _is_at(folder: Path, identity: str, other: Path) -> bool:
    """Return whether another folder than ``other`` holds the run of this id."""
    try:
        if folder.samefile(other) or stored_record(folder).get("id") != identity:
            return False
    except (OSError, StateError, ValueError):
        return False
    with suppress(OSError):  # without a lock it is another folder
        # one file system that is mounted twice: the lock names this process
        return read_regular(RunLayout(folder).lock) != read_regular(RunLayout(other).lock)
    return True


def _refuse_links(layout: RunLayout) -> None:
    """Raise ``StateError`` if a record of the run is a link: what is added to it could go anywhere."""
    records = (layout.events, layout.metrics, layout.samples, layout.goodput, layout.evaluations)
    if links := [path for path in records if path.is_symlink()]:
        msg = (
            f"{links[0]} is a symbolic link, and a run adds to no file outside of its folder: put the file itself there"
        )
        raise StateError(msg)


def versions_read(record: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Return the ``id``, ``name`` and ``cache`` of each version that a run has read, the newest last.

    Empty for a run that streams its data, and for a record of an earlier version of Holdfast.
    """
    versions = record.get(DATA_VERSIONS, ())
    return [entry for entry in versions if _is_version(entry)] if isinstance(versions, list) else []


def _is_version(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in ("id", "name", "cache"))


def began_with(path: Path) -> Mapping[str, Any] | None:
    """Return the settings of the run in ``path`` as recorded last, None if none have been accepted yet."""
    record = read_record(path) if RunLayout(path).record.exists() else {"facts": {}}
    return dict(record["settings"]) if "tokenizer" in record["facts"] else None


def is_for_all_ranks(key: str) -> bool:
    """Return whether the setting ``key`` must be equal on all ranks, so that they take the same steps."""
    return is_identity(key) or is_below(key, _EVERYONES)


def _makes_another_run(key: str, values: tuple[Any, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether a run cannot continue with another value of ``key``; file contents are compared elsewhere."""
    if key == "data.path":
        return not _is_of_files(settings["data"])
    if (name := source_of_path(key)) is not None:
        return not _is_of_files((settings["data"].get("sources") or {}).get(name) or {})
    return is_identity(key, *values)


def _is_of_files(source: Mapping[str, Any]) -> bool:
    """Return whether the path of ``source`` is a location of files, and not the name of a dataset."""
    kind, path = source.get("kind"), source.get("path")
    return kind in ("files", "tokens") or (kind == "huggingface" and _is_saved_dataset(str(path)))


def _is_saved_dataset(path: str) -> bool:
    folder = Path(os.path.expanduser(path))  # noqa: PTH111  that of Path raises for an unknown user
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
