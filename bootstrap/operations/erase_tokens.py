"""Erases the tokens of an encrypted cache for good."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations
from holdfast.adapters.shared.token_store.token_erasure import TokenEraser
from holdfast.adapters.shared.token_store.token_folder import MARKER, holds_encrypted
from holdfast.adapters.state_store.access_guard import AccessGuard
from holdfast.bootstrap.operations.erase_checkpoints import ELSEWHERE, on_disk
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import refuse_study
from holdfast.bootstrap.run_folder.run_audit import who
from holdfast.bootstrap.wiring.access_roles import own_roles
from holdfast.domain.checkpoints.roles import Role
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.adapters.shared.token_store.token_erasure import ErasableTokens


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """The folder ``root`` of a token cache, or of one ``dataset`` in it; the dataset may no longer exist."""

    root: Path
    dataset: str | None

    @property
    def path(self) -> Path:
        """Return the folder that the user named."""
        return self.root if self.dataset is None else self.root / self.dataset


def token_place_of(path: Path) -> TokenPlace | None:
    """Return the token cache, or the dataset in one, at ``path``, None for a run folder; else raises ``StateError``."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  a dataset that is a link is not followed
    with on_disk(path):
        if RunLayout(absolute).record.exists():
            return None
        if (absolute / MARKER).is_file():
            return TokenPlace(absolute, None)
        if (absolute.parent / MARKER).is_file() and not absolute.name.startswith("."):
            return TokenPlace(absolute.parent, absolute.name)
    refuse_study(path)
    msg = (
        f"{path} is neither a run folder nor the folder of a token cache or of a dataset in one: name a folder such as "
        "runs/default or ~/.cache/holdfast/encrypted-tokens"
    )
    raise StateError(msg)


def erase_tokens(place: TokenPlace, steps: Collection[int], *, is_sure: bool, unencrypted: bool) -> list[str]:
    """Erase the tokens at ``place``, and return lines for a person.

    Unless ``is_sure``, nothing is erased, and the lines list the tokens to erase. Raises ``ConfigurationError`` without
    the role to delete, or for options that apply only to checkpoints. Raises ``StateError`` if the tokens are not
    encrypted, if there are none, or if a process uses them.
    """
    AccessGuard([Role(name) for name in own_roles(os.environ)]).require(Role.DELETE, f"erasing in {place.path}")
    with on_disk(place.path):
        _refuse_plain(place)
        if steps or unencrypted:
            what = "has no steps: leave out STEP" if steps else "is encrypted: leave out --unencrypted"
            msg = f"the token cache {place.path} {what}"
            raise ConfigurationError(msg)
        eraser = TokenEraser(place.root, TokenFileOperations(), who(), place.dataset)
        with eraser.alone():
            found, versions = eraser.found(), eraser.versions()
            names = [*(_description(each) for each in found), *(f"{path} (version)" for path in versions)]
            if not names:
                msg = f"there are no tokens to erase in {place.path}: name another folder"
                raise StateError(msg)
            if not is_sure:
                return [*(f"would erase {name}" for name in names), "nothing is erased without --yes"]
            for each in found:
                eraser.erase(each)
            for path in versions:
                eraser.erase_version(path)
    return [*(f"erased {name}" for name in names), ELSEWHERE]


def _refuse_plain(place: TokenPlace) -> None:
    if not holds_encrypted(place.root):
        msg = (
            f"the tokens in {place.path} are not encrypted, so there is no key to destroy: delete the folder, and "
            "destroy the disk if it must be certain that nobody reads them"
        )
        raise StateError(msg)


def _description(found: ErasableTokens) -> str:
    return f"{found.folder} ({counted(found.num_shards, 'shard')})"
