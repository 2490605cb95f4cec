"""Opens a dataset of a token cache for a command that reads its descriptions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.shared.token_store.token_folder import MARKER, holds_encrypted
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import refuse_study
from holdfast.bootstrap.wiring.access_roles import require_to_read
from holdfast.bootstrap.wiring.encryption_keys import build_shard_encryption
from holdfast.bootstrap.wiring.named_version import find_version
from holdfast.bootstrap.wiring.version_store import VersionStore
from holdfast.configs.sections.base import KeySettings
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.home_folder import expanded

if TYPE_CHECKING:
    from holdfast.ports.token_cache import TokenCache


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
        found = find_version(str(absolute), [])
        if not found.tokens.is_dir():
            msg = f"the tokens of version {found.version.id} are no longer in {found.cache}: prepare the data again"
            raise DataError(msg)
        return Path(os.path.abspath(found.cache)), found.version.dataset  # noqa: PTH100
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
