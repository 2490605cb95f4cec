"""Reads the profile of a dataset from its token cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.open_dataset import open_dataset
from holdfast.bootstrap.wiring.version_steps import TOKENIZER
from holdfast.bootstrap.wiring.version_store import VersionStore
from holdfast.domain.data.profile import Profile
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.ports.token_cache import TokenCache


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
