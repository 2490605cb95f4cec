"""Reads the profile of a dataset from its token cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.open_dataset import open_dataset
from holdfast.domain.data.profile import Profile
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.ports.token_cache import TokenCache


@dataclass(frozen=True, slots=True)
class ProfiledDataset:
    """A dataset ``name`` of a token cache, its number of shards, and their merged ``profile``."""

    name: str
    num_shards: int
    profile: Profile


def profile_of(path: Path, key_from: str | None = None) -> ProfiledDataset:
    """Return the profile of the dataset that ``path`` and ``key_from`` name; raises the errors of ``open_dataset``.

    Raises ``DataError`` if shards have no profile.
    """
    dataset = open_dataset(path, key_from)
    return profile_in(dataset.tokens, dataset.name, dataset.folder)


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
