"""Finds the version of a dataset that a user names."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.token_store.token_folder import MARKER
from holdfast.bootstrap.run_folder.folder import versions_read
from holdfast.bootstrap.run_folder.found_paths import settings_as_found
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record, refuse_study
from holdfast.bootstrap.wiring.data_streams import cache_folder
from holdfast.bootstrap.wiring.version_store import VersionStore
from holdfast.configs.error_messages import one_line
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.home_folder import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.data.dataset_version import DatasetVersion

_MOST_NAMED = 8


@final
@dataclass(frozen=True, slots=True)
class NamedVersion:
    """A ``version`` and the token ``cache`` that it is recorded in."""

    version: DatasetVersion
    cache: Path

    @property
    def tokens(self) -> Path:
        """Return the folder with the tokens of the version, which may have been deleted."""
        return self.cache / self.version.dataset


def find_version(name: str, caches: Sequence[Path]) -> NamedVersion:
    """Return the version that ``name`` names.

    ``name`` is an id, the beginning of one, the name of the data (then the newest version of that name), the name or
    the folder of a dataset in a token cache, or a run: its folder, or its name in ``runs`` where no version is called
    so. Ids and names are looked up in ``caches``, or in the token cache whose folder stands before them. Raises
    ``DataError`` that lists the versions if there is none, or if several ids begin with ``name``, and ``StateError``
    for the folder of a study.
    """
    path = expanded(name)
    refuse_study(path)
    if RunLayout(path).record.exists():
        return _of_run(path)
    if path.is_dir() and (found := _of_dataset(path.absolute())):
        return found
    if (path.parent / MARKER).is_file():
        name, caches = path.name, [path.parent]
    there = [NamedVersion(version, cache) for cache in caches for version in VersionStore(cache).all()]
    if named := [each for each in there if name in (each.version.name, each.version.dataset)]:
        return max(named, key=lambda each: each.version.created)
    matching = [each for each in there if name and each.version.id.startswith(name)]
    if len({each.version.id for each in matching}) == 1:
        return matching[0]
    if not matching and "/" not in name:
        by_name = Path("runs", name)
        refuse_study(by_name)
        if RunLayout(by_name).record.exists():
            return _of_run(by_name)
    shown = one_line(name)
    if matching:
        msg = f"several versions begin with {shown!r}: {_listed(matching)}; name one of them"
    else:
        places = " and ".join(map(str, caches)) or "any cache"
        hint = "" if "/" in name else f" (in another token cache: put its folder before it, such as tokens/{shown})"
        msg = f"there is no version {shown!r} in {places}: there {_are(there)}{hint}"
    raise DataError(msg)


def _of_run(run: Path) -> NamedVersion:
    """Return the only version that ``run`` has read last; raises ``DataError`` otherwise."""
    record = read_record(run)
    newest = {entry["name"]: entry for entry in versions_read(record)}
    if not newest:
        msg = f"{run / 'run.json'} names no version of data: {_without_versions(record)}"
        raise DataError(msg)
    if len(newest) > 1:
        listed = ", ".join(f"{entry['id']} ({one_line(name)})" for name, entry in newest.items())
        msg = f"the run in {run} has read several datasets: {listed}; name one of them"
        raise DataError(msg)
    [entry] = newest.values()
    cache = _cache_with(entry, record, run)
    if (version := VersionStore(cache).get(entry["id"])) is None:
        there = [NamedVersion(each, cache) for each in VersionStore(cache).all()]
        msg = f"the run in {run} has read version {entry['id']}, which is no longer in {cache}: there {_are(there)}"
        raise DataError(msg)
    return NamedVersion(version, cache)


def _cache_with(entry: Mapping[str, str], record: Mapping[str, Any], run: Path) -> Path:
    """Return the token cache that holds the version of ``entry``: that of then, which may have moved with ``run``."""
    cache = Path(entry["cache"])
    if VersionStore(cache).get(entry["id"]) is None:
        with suppress(ConfigurationError):  # the settings are not accepted any more
            settings = settings_as_found(record, run)
            moved = cache_folder(settings.data, settings.run)
            return cache if VersionStore(moved).get(entry["id"]) is None else moved
    return cache


def _without_versions(record: Mapping[str, Any]) -> str:
    """Return why the run of ``record`` has read no version, as a clause."""
    if (error := record.get("start", {}).get("error")) is not None:
        return f"its start ended before its tokens were there ({one_line(str(error))})"
    chosen = record["auto"].get("data.mode", {}).get("value", record["settings"].get("data", {}).get("mode"))
    if chosen == "stream":
        return "the run streams its data, whose tokens are not kept: `prepare` them"
    return "it was made by an earlier Holdfast, or has not read its data yet"


def _of_dataset(folder: Path) -> NamedVersion | None:
    versions = [each for each in VersionStore(folder.parent).all() if each.dataset == folder.name]
    return NamedVersion(versions[-1], folder.parent) if versions else None


def _are(there: Sequence[NamedVersion]) -> str:
    return f"are {_listed(there)}" if there else "are none yet; `prepare` makes them"


def _listed(versions: Sequence[NamedVersion]) -> str:
    newest = [f"{each.version.id} ({one_line(each.version.name)})" for each in reversed(versions)]
    more = len(newest) - _MOST_NAMED
    return ", ".join(newest[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
