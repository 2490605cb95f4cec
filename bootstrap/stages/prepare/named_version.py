"""Finds the version of a dataset that a user names."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.token_store.token_folder import MARKER, holds_encrypted
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.bootstrap.adapter_choice.encryption_keys import build_shard_encryption, require_to_read
from holdfast.bootstrap.run_folder.folder import versions_read
from holdfast.bootstrap.run_folder.found_paths import settings_as_found
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record, refuse_study
from holdfast.bootstrap.stages.identify.data_form import cache_folder
from holdfast.bootstrap.stages.prepare.dataset_versions import TOKENIZER, VersionStore
from holdfast.configs.error_messages import one_line
from holdfast.configs.sections.base import KeySettings
from holdfast.domain.data.profile import Profile
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.data.dataset_version import DatasetVersion
    from holdfast.ports.token_cache import TokenCache

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


@dataclass(frozen=True, slots=True)
class ProfiledDataset:
    """A dataset ``name`` of a token cache, its number of shards, and their merged ``profile``.

    ``tokenizer`` is a digest of what made the tokens, None if the cache has no record of it.
    """

    name: str
    num_shards: int
    profile: Profile
    tokenizer: str | None = None

    def has_tokens_of(self, tokenizer: str | None) -> bool:
        """Return whether the tokens are known to be those that ``tokenizer``, such a digest, makes."""
        return self.tokenizer is not None and self.tokenizer == tokenizer


def profile_of(path: Path, key_from: str | None = None) -> ProfiledDataset:
    """Return the profile of the dataset that ``path`` and ``key_from`` name; raises the errors of ``open_dataset``.

    Raises ``DataError`` if shards have no profile.
    """
    dataset = open_dataset(path, key_from)
    versions = [each for each in VersionStore(dataset.root).all() if each.dataset == dataset.name]
    steps = [step for version in versions for step in version.steps if step.name == TOKENIZER]
    tokenizer = steps[-1].fingerprint if steps else None
    return replace(profile_in(dataset.tokens, dataset.name, dataset.folder), tokenizer=tokenizer)


def profile_in(cache: TokenCache, name: str, folder: Path) -> ProfiledDataset:
    """Return the profile of the dataset ``name`` that ``cache`` holds in ``folder``.

    Raises ``DataError`` if there are no shards, or if a shard has no profile.
    """
    profiles = [_of_meta(folder, shard.name, cache.meta(shard)) for shard in cache.shards()]
    if not profiles:
        msg = f"the dataset {folder} has no complete shard: run `prepare` again"
        raise DataError(msg)
    return ProfiledDataset(name, len(profiles), Profile.merged(profiles))


def _of_meta(dataset: Path, shard: str, meta: Mapping[str, Any]) -> Profile:
    if "profile" not in meta:
        msg = f"the shard {shard} of {dataset} has no profile, as an earlier version made it: prepare the data again"
        raise DataError(msg)
    profile = Profile.from_json(meta["profile"])
    drops = meta.get("drops", {})
    return profile if profile.rejects else profile.merge(Profile(rejects=drops))


@dataclass(frozen=True, slots=True)
class OpenDataset:
    """The dataset ``name`` in the token cache at ``root``."""

    root: Path
    name: str
    tokens: TokenCache

    @property
    def folder(self) -> Path:
        """Return the folder of the dataset."""
        return self.root / self.name


def open_dataset(path: Path, key_from: str | None = None) -> OpenDataset:
    """Return the dataset in the folder ``path``, or the only dataset of the token cache there.

    ``path`` may also be a run folder, and the id or the name of a version in the folder of its token cache, such as
    ``tokens/march``. ``key_from`` names the key of encrypted tokens, as data.cache.encryption.key_from does. Raises
    ``DataError`` if there is no such version, and ``ConfigurationError`` if ``path`` names no dataset, and if this
    process lacks the role to read, or to use the key of encrypted tokens.
    """
    root, name = _place_of(path)
    is_encrypted = holds_encrypted(root)
    require_to_read(root / name, is_encrypted=is_encrypted)
    if is_encrypted and key_from is None:
        msg = f"the tokens in {root} are encrypted: name their key with --key-from env:NAME or file:PATH"
        raise ConfigurationError(msg)
    encryption = build_shard_encryption(KeySettings(key_from=key_from) if is_encrypted and key_from else None)
    return OpenDataset(root, name, DiskTokenCache(root, name, verify=False, encryption=encryption))


def _place_of(path: Path) -> tuple[Path, str]:
    """Return the token cache and the name of the dataset that ``path`` names."""
    absolute = Path(os.path.abspath(expanded(path)))  # noqa: PTH100  a dataset that is a link is not followed
    if (absolute / MARKER).is_file():
        return absolute, _only_dataset(absolute)
    if (absolute.parent / MARKER).is_file() and absolute.is_dir() and not absolute.name.startswith("."):
        return absolute.parent, absolute.name
    has_versions = (absolute.parent / MARKER).is_file() and VersionStore(absolute.parent).all()
    if has_versions or RunLayout(absolute).record.exists():
        version = find_version(str(absolute), [])
        if not version.tokens.is_dir():
            msg = f"the tokens of version {version.version.id} are no longer in {version.cache}: prepare the data again"
            raise DataError(msg)
        return Path(os.path.abspath(version.cache)), version.version.dataset  # noqa: PTH100
    refuse_study(absolute)
    msg = f"{path} is not the folder of a dataset in a token cache: name one, such as ~/.cache/holdfast/tokens/ID"
    raise ConfigurationError(msg)


def _only_dataset(root: Path) -> str:
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        msg = f"the token cache {root} holds no dataset: run `prepare` first"
        raise ConfigurationError(msg)
    if len(names) > 1:
        msg = f"the token cache {root} holds {len(names)} datasets: name the folder of one, such as {root / names[0]}"
        raise ConfigurationError(msg)
    return names[0]
