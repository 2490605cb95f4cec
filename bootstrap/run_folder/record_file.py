"""The file ``run.json`` of a run folder, and the verified copies of it in the checkpoints, which cure damage."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, final

from holdfast.adapters.shared.files.file_operations import FileOperations, explain, replace_file
from holdfast.adapters.shared.files.regular_file import HASH, parse_json, read_alike, sealed, unsealed
from holdfast.adapters.shared.network.hub_names import nearest_name
from holdfast.adapters.state_store.checkpoint_verification import read_manifest
from holdfast.adapters.state_store.hashing import CorruptCheckpoint
from holdfast.adapters.state_store.store_folder import StoreFolder
from holdfast.adapters.state_store.verified_read import read_verified
from holdfast.bootstrap.run_folder.layout import RECORD, STUDY_RECORD, RunLayout
from holdfast.configs.aliases import with_current_names
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import restore_settings
from holdfast.domain.data.data_files import LATEST_RULES
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.fault_tolerance.remedies import FRESH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNSEALED = 1  # the schema of records without a hash
RULES: Mapping[str, int] = MappingProxyType(
    {**dict.fromkeys(("parameter_groups", "mixture_stages", "blank_texts", "row_order", "text_bytes"), 2)}
    | {"files": LATEST_RULES}
)
"""The newest version of each rule whose results have changed; a run keeps the version that it began with."""
SCHEMA = 2
_LARGEST = 256 << 20  # of a record that names a million files
_MEMBERS = {"settings": dict, "auto": dict, "facts": dict, "history": list}
_SECTIONS = ("run", "data", "model")
_OF_MODELS = ("config.json", "adapter_config.json")  # of the folders that `export` writes and transformers reads
_log = logging.getLogger(__name__)


class RecordLostError(StateError):
    """The ``run.json`` of a run folder is missing or is not what was written."""


@dataclass(frozen=True, slots=True)
class RecordCopy:
    """The ``record`` in the checkpoint of the name ``checkpoint``, verified."""

    checkpoint: str
    record: dict[str, Any]


def text_of(record: Mapping[str, Any]) -> str:
    """Return the text of ``run.json`` with ``record``."""
    return json.dumps(sealed({**record, "schema": SCHEMA}), indent=1)


def replace_record(path: Path, text: str) -> None:
    """Replace ``run.json`` of the run folder ``path`` atomically; raises ``StateError`` if it cannot be written."""
    try:
        replace_file(path / RECORD, text.encode())
    except OSError as error:
        msg = f"{path / RECORD} cannot be written, {explain(error)}"
        raise StateError(msg) from error


def read_record(path: Path) -> dict[str, Any]:
    """Return ``run.json`` of the run folder ``path``, with the current names of renamed settings.

    If it is missing or damaged, the one in the newest checkpoint that holds a verified copy is returned, and a warning
    is logged. Raises ``StateError`` if there is none, or if the file cannot be read.
    """
    try:
        return stored_record(path)
    except RecordLostError as lost:
        if (copy := copied_record(path)) is None:
            if not path.joinpath(RECORD).exists() and not RunLayout(path).durable_steps():
                raise
            msg = f"{lost}: {_remedy(path)}"
            raise StateError(msg) from lost
        using = f"what {copy.checkpoint} holds of it is used, and the next start of the run puts it back"
        _warn(f"{lost}: {using}", path.absolute())
        return copy.record


def stored_record(path: Path) -> dict[str, Any]:
    """Return ``run.json`` itself, as ``read_record`` does; raises ``RecordLostError`` if it is missing or damaged."""
    try:
        _refuse_size(path / RECORD)
        return record_in(read_alike(path / RECORD), path / RECORD)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecordLostError(no_run(path)) from error
    except OSError as error:
        msg = f"{path / RECORD} cannot be read: {error.strerror}"
        raise StateError(msg) from error


def no_run(path: Path) -> str:
    """Return a sentence on ``path``, which holds no ``run.json``: why it is not a run folder, and what may be meant."""
    if (path / STUDY_RECORD).is_file():
        return f"{path} is a study of tune: name the run folder of a trial, such as {path / 'trial-0000'}"
    why = f"it has no {RECORD}"
    if not os.path.lexists(path):
        why = f"there is no such folder{meant_run(path)}"
    elif any((path / name).is_file() for name in _OF_MODELS):
        why = "it is the folder of a model: name the run that it comes from, or train on it by model.path"
    return f"{path} is not a run folder: {why}"


def is_only_study(path: Path) -> bool:
    """Return whether ``path`` is the folder of a study, which holds the run folders of its trials and is none."""
    return os.path.isfile(path / STUDY_RECORD) and not os.path.lexists(path / RECORD)  # noqa: PTH113  never raises


def refuse_study(path: Path) -> None:
    """Raise ``StateError`` that names the runs to choose from if ``path`` is the folder of a study."""
    if is_only_study(path):
        raise StateError(no_run(path))


def meant_run(path: Path) -> str:
    """Return "; did you mean ...?" with the folder whose name is most like ``path``, here or in ``runs``, else ""."""
    places = [path, Path("runs", path)] if path.parent == Path() else [path]
    near = next((name for name in map(nearest_name, places) if name is not None and name.is_dir()), None)
    return "" if near is None else f"; did you mean {near}?"


def record_in(data: bytes, file: Path) -> dict[str, Any]:
    """Return the record in ``data``, the content of ``file``; raises ``RecordLostError`` if it is damaged.

    Raises ``StateError`` for a record of a later version.
    """
    try:
        return _checked(data, file)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{file} is damaged ({type(error).__name__}: {error})"
        raise RecordLostError(msg) from error


def copied_record(path: Path) -> RecordCopy | None:
    """Return the verified record in the newest checkpoint of the run folder ``path`` that has one, None without any.

    Encrypted checkpoints are passed over. Nothing is moved or written.
    """
    files = FileOperations()
    try:
        folders = StoreFolder(path.absolute(), files).checkpoints()
    except (OSError, StateError):
        return None
    for folder in reversed(folders):
        try:
            manifest = read_manifest(files, folder)
            [file] = [file for file in manifest.files if file.path == RECORD and manifest.wrapped_key is None]
            if file.size <= _LARGEST:
                return RecordCopy(folder.name, record_in(read_verified(files, folder, file), folder / RECORD))
        except (CorruptCheckpoint, OSError, StateError, ValueError):
            continue
    return None


def restore_record(path: Path) -> str | None:
    """Put back a ``run.json`` that is missing, damaged or not that of the run, from the newest checkpoint.

    Only the writer of the folder may call this. Returns a sentence on it, None if nothing was put back.
    """
    copy: RecordCopy | None = None
    try:
        record = stored_record(path)
        if record["schema"] != UNSEALED or (copy := copied_record(path)) is None:
            return None
        if not (unlike := unlike_members(copy.record, record)):
            return None
        why = f"{unlike[0]} in {path / RECORD} is not what {copy.checkpoint} holds, and no change of it is recorded"
    except RecordLostError as lost:
        if (copy := copied_record(path)) is None:
            return None
        why = str(lost)
    except StateError:  # who reads it next says why
        return None
    return put_back(path, copy, why)


def put_back(path: Path, copy: RecordCopy, why: str) -> str:
    """Replace ``run.json`` of the run folder ``path`` by ``copy``; return a sentence that begins with ``why``."""
    why = why if path.joinpath(RECORD).exists() else f"{path / RECORD} was missing"
    entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "restored_from": copy.checkpoint}
    replace_record(path, text_of({**copy.record, "history": [*copy.record["history"], entry]}))
    return f"{why}: it was put back as {copy.checkpoint} holds it, without what was recorded after that save"


def unlike_members(held: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Return the settings, choices and rules in ``record`` that differ from ``held``, that of a checkpoint, untold.

    What the history of ``record`` names may have changed since.
    """
    told = {key for entry in record["history"] for key in entry.get("changed", ())}
    unlike = [key for key in changes_since(held["settings"], record["settings"]) if key not in told]
    for name, entry in held["auto"].items():
        now = record["auto"].get(name, {})
        if now.get("value") != entry["value"] and now.get("reason", entry["reason"]) == entry["reason"]:
            unlike.append(name)
    rules = rules_of(record)
    return [*unlike, *(f"the rule {name}" for name, version in rules_of(held).items() if rules[name] != version)]


def read_whole_record(path: Path) -> dict[str, Any]:
    """Return ``read_record(path)``; raises ``StateError`` also if a part that pages and reports show is no mapping."""
    record = read_record(path)
    parts = {f"settings.{name}": record["settings"].get(name, {}) for name in _SECTIONS}
    parts |= {"origins": record.get("origins") or {}, "settings.run.budget": _budget_in(record["settings"])}
    if odd := [name for name, part in parts.items() if not isinstance(part, dict)]:
        msg = f"{path / RECORD} is damaged ({odd[0]} is not a mapping): {_remedy(path)}"
        raise StateError(msg)
    return record


def rules_of(record: Mapping[str, Any]) -> dict[str, int]:
    """Return the version of each rule that the run of ``record`` follows; a run that recorded none began with 1."""
    recorded = record.get("rules", {})
    return {name: int(recorded.get(name, 1)) for name in RULES}


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


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested settings by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _checked(data: bytes, file: Path) -> dict[str, Any]:
    record = parse_json(data)
    if record["schema"] > SCHEMA:
        if HASH in record and _is_sealed(record | {"schema": SCHEMA}):
            msg = "its schema is not what was written"
            raise ValueError(msg)
        msg = f"{file.parent} was written by a newer holdfast: upgrade to read it"
        raise StateError(msg)
    if record["schema"] != UNSEALED:
        record = unsealed({HASH: "", **record})
    _check_members(record)
    return {**record, "settings": with_current_names(record["settings"])}


def _refuse_size(file: Path) -> None:
    if (size := file.stat().st_size) > _LARGEST:
        msg = f"{file} is damaged (it has {size} bytes)"
        raise RecordLostError(msg)


def _is_sealed(record: Mapping[str, Any]) -> bool:
    return bool(sealed(record)[HASH] == record[HASH])


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


def _remedy(path: Path) -> str:
    """Return what to do with the run folder ``path``, whose record is lost and has no copy that can be read here."""
    if RunLayout(path).durable_steps():
        return "start the run again with its settings, which puts it back from its newest checkpoint"
    return f"set the folder aside with {FRESH}"


def _budget_in(settings: Mapping[str, Any]) -> Any:
    run = settings.get("run")
    return run.get("budget", {}) if isinstance(run, dict) else {}


@cache
def _warn(sentence: str, _of: Path) -> None:
    """Log ``sentence`` on a folder, once in this process."""
    _log.warning("%s", sentence)


@final
@dataclass(frozen=True, slots=True)
class Begun:
    """What the run of a folder began with: versions of its rules, places of its files, its hold-out and choices.

    The ``choices`` are values for ``auto`` settings by name. The defaults are those of a run that begins now.
    """

    rules: Mapping[str, int] = field(default_factory=lambda: RULES)
    places: Mapping[str, Sequence[str]] = field(default_factory=dict)
    holdout: Mapping[str, object] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)

    def keep(self, name: str, value: str, _reason: str) -> str:
        """Return the choice for the ``auto`` setting ``name`` that the run began with, without one ``value``."""
        return self.choices.get(name, value)


def name_of_minutes(minutes: float) -> str:
    """Return the name under which a run records its steps in ``minutes``; other minutes are another choice."""
    return f"run.budget.minutes={minutes:g}"


def name_of_epochs(epochs: int | Literal[""]) -> str:
    """Return the name under which a run records the steps of its epochs, or how the names of all epochs begin."""
    return f"data.epochs={epochs}"


def budget_in(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``run.budget`` of the settings in ``record``, the content of ``run.json``, with the steps decided for it.

    A record without such settings gives an empty budget.
    """
    budget = dict(_section(record, "settings", "run", "budget"))
    epochs = _section(record, "settings", "data").get("epochs")
    if isinstance(minutes := budget.get("minutes"), int | float):
        name = name_of_minutes(minutes)
    elif isinstance(epochs, int) and not (budget.get("steps") or budget.get("tokens")):
        name = name_of_epochs(epochs)
    else:
        return budget
    choice = record.get("auto", {}).get(name, {}).get("value", "")
    limits = [steps for steps in (budget.get("steps"), int(choice) if choice.isdigit() else None) if steps]
    budget["steps"] = min(limits, default=None)
    return budget


def _section(record: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    value: Any = record
    for name in names:
        value = value.get(name, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, dict) else {}
