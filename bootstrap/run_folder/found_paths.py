"""Relative paths in the settings of a run, as they are found from the current folder."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.regular_file import HASH, sealed
from holdfast.bootstrap.run_folder.record_file import UNSEALED, flatten
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import restore_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.configs.settings import TrainSettings

DIRECTORY = "directory"
"""The folder of the process at the last start, where relative paths of its settings begin; earlier records lack it."""

_TRUSTED = ("trust_remote_code", "trust_pickle")  # each repeats model.path
_GLOB, _KEY = "*?[", "file:"


def settings_as_found(record: Mapping[str, Any], place: Path) -> TrainSettings:
    """Return the settings of ``record``, that of the run folder or checkpoint ``place``, with paths as found from here.

    Raises ``ConfigurationError`` for settings that are not accepted any more.
    """
    return restore_settings(as_found(dump_settings(restore_settings(record["settings"])), record, place))


def as_found(settings: Mapping[str, Any], record: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return ``settings`` with relative paths of models, data, caches, archives, keys and tasks as found from here.

    They are searched in the project of the run folder or checkpoint ``place``, which may have been moved, then in the
    folder in which the run of ``record`` began, and then here; a path that is nowhere, such as a name on the hub, stays
    as it is.
    """
    roots = [*_projects(settings, record, place), Path.cwd()]
    return _with_paths(settings, lambda path: _found(path, roots))


def moved_elsewhere(
    keys: Iterable[str], record: Mapping[str, Any], place: Path, settings: Mapping[str, Any]
) -> Sequence[str]:
    """Return those of ``keys`` whose values in ``settings`` are other places, and not the same, written another way.

    ``record`` is that of the run folder or study ``place``, and relative paths of ``settings`` begin in this folder.
    """
    if not (asked := [*keys]):
        return asked
    before = flatten(_with_paths(as_found(record["settings"], record, place), _absolute))
    now = flatten(_with_paths(settings, _absolute))
    return [key for key in asked if before.get(key) != now.get(key)]


def _with_paths(settings: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of ``settings`` in which ``change`` was applied to each path."""
    changed = deepcopy(dict(settings))
    for section, key in _places(changed):
        paths = section[key] if isinstance(section[key], list) else [section[key]]
        values = [change(path) for path in paths]
        move_path(section, key, values if isinstance(section[key], list) else values[0])
    return changed


def _absolute(path: Any) -> Any:
    """Return ``path`` as an absolute one without links if it is one, or leads to what is here, else as it is."""
    if isinstance(path, str) and path.startswith(_KEY) and "://" not in path:
        return _KEY + _absolute(path.removeprefix(_KEY))
    if not isinstance(path, str) or path.startswith("~") or "://" in path or "\0" in path:
        return path
    is_place = path.startswith("/") or _exists(Path.cwd(), path)
    return os.path.realpath(path) if is_place else path


def at_project(text: bytes, place: Path) -> bytes:
    """Return the content ``text`` of ``run.json`` for a copy that may stand anywhere.

    It names the folder in which relative paths of the run in ``place`` are found now, which may have been moved.
    """
    record = {name: value for name, value in json.loads(text).items() if name != HASH}
    if (project := next(filter(Path.is_dir, _projects(record["settings"], record, place)), None)) is not None:
        record[DIRECTORY] = str(project)
    return json.dumps(record if record["schema"] == UNSEALED else sealed(record), indent=1).encode()


def move_path(section: dict[str, Any], key: str, value: Any) -> None:
    """Set ``key`` of ``section`` to the path ``value``, and what repeats it as a sign of trust."""
    before = section[key]
    section[key] = value
    for name in _TRUSTED:
        if before is not None and section.get(name) == before:
            section[name] = value


def _places(settings: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each section of ``settings`` with the name of a setting in it that is a path or a list of paths."""
    data, evaluation = settings["data"], settings.get("evaluation", {})
    sets = evaluation.get("sets") or {}
    cache, store = data.get("cache") or {}, settings.get("state_store", {})
    texts = [settings["model"], settings.get("tokenizer"), data, *(data.get("sources") or {}).values(), *sets.values()]
    named = [(section, "path") for section in texts]
    named += [(settings["run"], "cache_dir"), (cache, "dir"), (data.get("chat"), "template")]
    named += [(store.get("archive"), "url"), (evaluation.get("harness"), "tasks")]
    keys = (cache.get("encryption"), store.get("encryption"))
    named += [(section, key) for section in keys for key in ("key_from", "old_keys_from")]
    yield from ((section, key) for section, key in named if isinstance(section, dict) and section.get(key))


def _projects(settings: Mapping[str, Any], record: Mapping[str, Any], place: Path) -> Iterator[Path]:
    """Yield the folder that holds ``place`` as the settings name it, and the one in which the run began, if known."""
    run = settings["run"]
    tail = Path(run.get("dir") or Path("runs", run["name"])).parts
    here = place.absolute()
    if tail[0] != "/":
        folders = [folder for folder in (here, *here.parents) if folder.parts[-len(tail) :] == tail]
        yield from (Path(*folder.parts[: -len(tail)]) for folder in folders)
        yield from here.parents[len(tail) - 1 : len(tail)]  # of a run folder that has another name now
    began = record.get(DIRECTORY)
    if isinstance(began, str) and Path(began).is_absolute():
        yield Path(began)


def _found(path: Any, roots: Sequence[Path]) -> Any:
    """Return ``path`` as it is found from here: as it is if it is absolute, a URL, here or nowhere.

    The path of a key stands behind "file:".
    """
    if isinstance(path, str) and path.startswith(_KEY) and "://" not in path:
        return _KEY + _found(path.removeprefix(_KEY), roots)
    if not isinstance(path, str) or path.startswith(("/", "~")) or "://" in path:
        return path
    here = Path.cwd()
    for root in roots:
        if _exists(root, path):
            return path if root == here else str(root / path)
    return path


def _exists(root: Path, path: str) -> bool:
    try:
        return (root / path).exists() or (any(sign in path for sign in _GLOB) and any(root.glob(path)))
    except (OSError, ValueError):
        return False
