"""The folder of a run: its lock, and the record of its settings and choices."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final
from uuid import uuid4

from holdfast.adapters.shared.files.atomic_replace import replace_file
from holdfast.adapters.shared.files.regular_file import read_alike, read_regular
from holdfast.adapters.shared.files.sealed_json import HASH, sealed, unsealed
from holdfast.bootstrap.run_folder.layout import RECORD, STUDY_RECORD, RunLayout
from holdfast.bootstrap.run_folder.run_lock import take_lock
from holdfast.configs.aliases import with_current_names
from holdfast.configs.rendering import dump_settings
from holdfast.configs.run_names import is_below, is_identity, source_of_path
from holdfast.configs.settings_layers import restore_settings
from holdfast.domain.data.data_files import LATEST_RULES
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRAINING = "training"
DATA_VERSIONS = "data_versions"
"""The versions of datasets that the starts of a run have read, the newest last; earlier records lack it."""
RULES: Mapping[str, int] = MappingProxyType(
    {**dict.fromkeys(("parameter_groups", "mixture_stages", "blank_texts", "row_order", "text_bytes"), 2)}
    | {"files": LATEST_RULES}
)
"""The newest version of each rule whose results have changed; a run keeps the version that it began with."""
_SCHEMA = 2
UNSEALED = 1  # the schema of records without a hash
_MEMBERS = {"settings": dict, "auto": dict, "facts": dict, "history": list}
_SECTIONS = ("run", "data", "model")
# Further settings that must be equal on all ranks of a run.
_EVERYONES = ("optimizer", "run.budget", "evaluation", "state_store", "model.gradient_checkpointing")


@final
class RunFolder:
    """``run.json`` and the lock of one run folder; opening it makes this process its only writer until ``close``.

    The lock belongs to the operating system (flock), which releases it at any end of the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = take_lock(path)
        self.record: dict[str, Any] = {}
        self.settings_before: Mapping[str, Any] | None = None
        self.copied_from: str | None = None
        self._kept: dict[str, Any] = {}
        try:
            _refuse_links(RunLayout(path))
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
            blank: dict[str, Any] = {"schema": _SCHEMA, "created": _now(), "auto": {}, "facts": {}, "history": []}
            self.record = blank | {"id": self.record["id"]} if self.record else blank
        else:
            self.settings_before = self.record["settings"]
            changes = changes_since(self.record["settings"], settings)
            refused = [key for key in changes if _makes_another_run(key, changes[key], settings)]
            if refused:
                # another kind has other settings, which the user has not changed
                key = min(refused, key=lambda key: not key.endswith(".kind"))
                old, new = ("not set" if value is None else repr(value) for value in changes[key])
                msg = (
                    f"{key} was {old} when the run in {self.path} began and is {new} now: put it back, "
                    "give the new run another run.name, or set the old one aside with --fresh"
                )
                raise ConfigurationError(msg)
            if changes:
                self.record["history"].append({"time": _now(), "changed": changes})
        self.record["settings"] = dict(settings)
        self.record.pop("origins", None)
        if origins is not None:
            self.record["origins"] = dict(origins)
        self.record.setdefault("id", uuid4().hex)
        self.record["folder"] = str(self.path.absolute())
        is_first = self.settings_before is None
        self._kept = deepcopy(self.record) if is_first else self._kept
        self.record["start"] = {"time": datetime.now(UTC).isoformat(), "is_first": is_first}

    def enter(self, phase: str) -> None:
        """Record in ``run.json`` that this start has reached ``phase``, without any other change."""
        self.record["start"]["phase"] = phase
        replace_record(self.path, _text_of(self._kept | {"start": self.record["start"]}))

    def note(self, entry: Mapping[str, Any]) -> None:
        """Add ``entry``, an action on the run, to the history in ``run.json``, with the time."""
        history = [*self._kept["history"], {"time": _now(), **entry}]
        self._kept = self._kept | {"history": history}
        replace_record(self.path, _text_of(self._kept))

    def fail(self, error: str) -> bool:
        """Record in ``run.json`` the ``error`` that ended this start, unless ``write`` came first; return whether."""
        if self.record["start"].get("phase") in (None, TRAINING):
            return False
        self.record["start"]["error"] = error
        with suppress(StateError):
            self.enter(self.record["start"]["phase"])
        return True

    def decide(self, name: str, value: str, reason: str) -> str:
        """Return the recorded choice for the ``auto`` setting ``name``; without one, record and return ``value``."""
        decided = self.record["auto"].setdefault(name, {"value": value, "reason": reason})
        return str(decided["value"])

    def hold_to(self, name: str, value: str, remedy: str) -> None:
        """Record the fact ``name``; raises ``StateError`` if the run began with another value."""
        known = self.record["facts"].setdefault(name, value)
        if known != value:
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
    def sentences_on_copy(self) -> Sequence[str]:
        """Return a sentence if the folder turned out to be a copy of a run that is still there."""
        text = (
            f"this is a copy of {self.copied_from}, which is still there: it is a run of its own now, with another id "
            "(a folder that was moved, not copied, continues the same run)"
        )
        return [] if self.copied_from is None else [text]

    def _separate_copy(self) -> None:
        """Give a copy of a run whose original is still at its place an id of its own.

        Trackers, ledger and archive know a run by its id: two runs of one id would replace each other's data.
        """
        try:
            record = read_record(self.path)
            former, identity, here = record["folder"], record["id"], str(self.path.absolute())
        except (StateError, KeyError):  # there is none, or of an earlier version; what is damaged is found later
            return
        if not isinstance(former, str) or former == here or not _is_at(Path(former), identity, self.path):
            return
        history = [*record["history"], {"time": _now(), "copied_from": former, "id": identity}]
        replace_record(self.path, _text_of(record | {"id": uuid4().hex, "folder": here, "history": history}))
        self.copied_from = former
        with suppress(OSError):
            RunLayout(self.path).trackers.unlink(missing_ok=True)  # the new run of each lacks all metrics

    def _refuse_orphans(self) -> None:
        if RunLayout(self.path).holds_checkpoints:
            msg = f"{self.path} holds checkpoints but no {RECORD} that describes them: set it aside with --fresh"
            raise StateError(msg)

    def as_json(self) -> str:
        """Return the text that ``write`` writes."""
        return _text_of(self.record)

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
        if folder.samefile(other) or read_record(folder).get("id") != identity:
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


def _text_of(record: dict[str, Any]) -> str:
    return json.dumps(sealed(record | {"schema": _SCHEMA}), indent=1)


def replace_record(path: Path, text: str) -> None:
    """Replace ``run.json`` of the run folder ``path`` atomically; raises ``StateError`` if it cannot be written."""
    try:
        replace_file(path / RECORD, text.encode())
    except OSError as error:
        msg = f"{path / RECORD} cannot be written: {error.strerror}"
        raise StateError(msg) from error


def read_record(path: Path) -> dict[str, Any]:
    """Return ``run.json`` of the run folder ``path``, with the current names of renamed settings.

    Raises ``StateError`` if it is missing, damaged or unreadable.
    """
    try:
        record = json.loads(read_alike(path / RECORD))
        if record["schema"] > _SCHEMA:
            msg = f"{path} was written by a newer holdfast: upgrade to read it"
            raise StateError(msg)
        if record["schema"] != UNSEALED:
            record = unsealed({HASH: "", **record})
        _check_members(record)
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"{path} is not a run folder: it has no {RECORD}"
        if (path / STUDY_RECORD).is_file():
            msg = f"{path} is a study of tune: name the run folder of a trial, such as {path / 'trial-0000'}"
        raise StateError(msg) from error
    except OSError as error:
        msg = f"{path / RECORD} cannot be read: {error.strerror}"
        raise StateError(msg) from error
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{path / RECORD} is damaged ({type(error).__name__}: {error}): set the folder aside with --fresh"
        raise StateError(msg) from error
    return {**record, "settings": with_current_names(record["settings"])}


def read_whole_record(path: Path) -> dict[str, Any]:
    """Return ``read_record(path)``; raises ``StateError`` also if a part that pages and reports show is no mapping."""
    record = read_record(path)
    parts = {f"settings.{name}": record["settings"].get(name, {}) for name in _SECTIONS}
    parts |= {"origins": record.get("origins") or {}, "settings.run.budget": _budget_in(record["settings"])}
    if odd := [name for name, part in parts.items() if not isinstance(part, dict)]:
        msg = f"{path / RECORD} is damaged ({odd[0]} is not a mapping): set the folder aside with --fresh"
        raise StateError(msg)
    return record


def _budget_in(settings: Mapping[str, Any]) -> Any:
    run = settings.get("run")
    return run.get("budget", {}) if isinstance(run, dict) else {}


def _check_members(record: Mapping[str, Any]) -> None:
    for name, kind in _MEMBERS.items():
        if not isinstance(record[name], kind):
            msg = f"{name} is not a {kind.__name__}"
            raise TypeError(msg)
    rules = record.get("rules", {})
    if not isinstance(rules, dict) or not all(type(version) is int for version in rules.values()):
        msg = "rules is not a mapping to numbers"
        raise TypeError(msg)
    if not all(isinstance(decided["value"], str) for decided in record["auto"].values()):
        msg = "auto holds a value that is not text"
        raise TypeError(msg)
    if "start" in record and datetime.fromisoformat(record["start"]["time"]).tzinfo is None:
        msg = "the time of its start has no time zone"
        raise ValueError(msg)


def rules_of(record: Mapping[str, Any]) -> dict[str, int]:
    """Return the version of each rule that the run of ``record`` follows; a run that recorded none began with 1."""
    recorded = record.get("rules", {})
    return {name: int(recorded.get(name, 1)) for name in RULES}


def versions_read(record: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Return the ``id``, ``name`` and ``cache`` of each version that a run has read, the newest last.

    Empty for a run that streams its data, and for a record of an earlier version of Holdfast.
    """
    found = record.get(DATA_VERSIONS, ())
    return [entry for entry in found if _is_version(entry)] if isinstance(found, list) else []


def _is_version(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in ("id", "name", "cache"))


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return each dotted key whose value differs, with both values."""
    flat_old, flat_new = flatten(old), flatten(new)
    return {
        key: (flat_old.get(key), flat_new.get(key))
        for key in sorted({*flat_old, *flat_new})
        if flat_old.get(key) != flat_new.get(key)
    }


def changes_since(recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what ``changed_settings`` does, without new settings, unknown when the run began, that have their default.

    They count as changes if the ``recorded`` settings are not accepted any more.
    """
    changes = changed_settings(recorded, settings)
    new = changes.keys() - flatten(recorded).keys()
    if not new:
        return changes
    try:
        defaults = flatten(dump_settings(restore_settings(dict(recorded))))
    except ConfigurationError:
        return changes
    return {key: values for key, values in changes.items() if key not in new or values[1] != defaults.get(key)}


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


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested settings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
