"""Reads the shards of a token cache without converting them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations
from holdfast.adapters.shared.token_store.token_folder import MARKER, TokenFolder
from holdfast.adapters.shared.token_store.token_shards import StoredShards
from holdfast.adapters.token_source.documents import check_ids
from holdfast.adapters.token_source.shards import FileShard
from holdfast.domain.errors import DataError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.adapters.token_source.shards import ReadOptions

_REMEDY = "fill that cache again, or leave the path out"


def is_token_cache(path: Path) -> bool:
    """Return whether ``path`` is a token cache, or the folder of one dataset in it."""
    return (path / MARKER).is_file() or (path.is_dir() and (path.parent / MARKER).is_file())


def cached_shards(path: Path, options: ReadOptions, *, verify: bool, max_open: int) -> Iterator[FileShard]:
    """Yield the shards below the token cache ``path``; none of them is ever deleted."""
    place = _only_dataset(path) if (path / MARKER).is_file() else path
    folder = TokenFolder(place.parent, TokenFileOperations())
    stored = StoredShards(folder, place, verify=verify, max_open=max_open, remedy=_REMEDY, error=DataError)
    for name, manifest in stored.scan().items():
        shard = manifest.shard
        named = TokenShard(f"{place}/{name}", shard.num_tokens, shard.num_documents, shard.fingerprint)
        yield FileShard(
            named, partial(_open, stored, shard, options.vocabulary_size if verify else None), named.name, str(place)
        )


def _only_dataset(path: Path) -> Path:
    datasets = sorted(place for place in path.iterdir() if place.is_dir() and not place.name.startswith("."))
    if len(datasets) != 1:
        names = ", ".join(place.name for place in datasets) or "none"
        msg = f"{path} is a token cache of {len(datasets)} datasets ({names}): name the folder of one of them"
        raise DataError(msg)
    return datasets[0]


def _open(stored: StoredShards, shard: TokenShard, vocabulary_size: int | None) -> Tokens:
    tokens = stored.open(shard)
    if vocabulary_size is not None:
        check_ids(
            tokens.ids[:],
            vocabulary_size,
            lambda number: f"the id at position {number} of the shard {shard.name!r} in {stored.place}",
        )
    return tokens
