"""Erases checkpoints of a run for good, on the disk and in its archive."""

from __future__ import annotations

import contextlib
import os
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.shared.files.file_operations import FileOperations, destroy_file, explain
from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations
from holdfast.adapters.shared.token_store.token_erasure import TokenEraser
from holdfast.adapters.shared.token_store.token_folder import MARKER, holds_encrypted
from holdfast.adapters.state_store.checkpoint_encryption import Eraser
from holdfast.adapters.state_store.hashing import CorruptCheckpoint
from holdfast.adapters.state_store.store_folder import AccessGuard, StoreFolder
from holdfast.bootstrap.adapter_choice.encryption_keys import own_roles
from holdfast.bootstrap.adapter_choice.state_stores import archive_of
from holdfast.bootstrap.run_folder.folder import RunFolder
from holdfast.bootstrap.run_folder.found_paths import settings_as_found
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record, refuse_study
from holdfast.bootstrap.run_folder.run_audit import audit_of, who
from holdfast.domain.checkpoints.retention import Role
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from holdfast.adapters.shared.token_store.token_erasure import ErasableTokens
    from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
    from holdfast.configs.settings import TrainSettings

ELSEWHERE = (
    "copies that were made by others (backups, snapshots, old versions in a bucket) are not: whoever must be certain "
    "destroys the key that wrapped their keys"
)

_PLAIN = (
    "the records of the data were not encrypted: their bytes were overwritten, and an SSD may hold older copies of them"
)


@dataclass(frozen=True, slots=True)
class _Place:
    step: int
    name: str
    is_encrypted: bool
    erase: Callable[[], object]


def erase(run: Path, steps: Collection[int], *, is_sure: bool, unencrypted: bool) -> list[str]:
    """Erase the checkpoints of ``steps``, or all but the newest and the pinned ones; return lines for a person.

    Without ``steps``, the run's records of its data (``RunLayout.data_records``) are erased too. Unless ``is_sure``,
    nothing is erased, and the lines list the checkpoints and records to erase. Raises ``ConfigurationError``
    without the role to delete. Raises ``StateError`` if a step has no checkpoint, if a checkpoint is not encrypted and
    ``unencrypted`` is False, or if the run trains.
    """
    record = read_record(run)
    settings = settings_as_found(record, run)
    audit = audit_of(run, settings.state_store)
    AccessGuard([Role(name) for name in own_roles(os.environ)], audit.record).require(Role.DELETE, f"erasing in {run}")
    with (
        closing(RunFolder(run)),  # a copy of another run gets an id of its own, and is kept from the other's archive
        _archive(settings, read_record(run).get("id"), is_writing=is_sure) as archive,
        on_disk(run),
    ):
        eraser = Eraser(run.absolute(), FileOperations())
        places = [*_folders(eraser), *_copies(archive)]
        records = [] if steps else _records(run)
        chosen = _chosen(run, places, steps, is_alone=not records)
        _refuse_plain(chosen, unencrypted=unencrypted)
        names = [*(place.name for place in chosen), *(f"{path} (record of the data)" for path in records)]
        if not is_sure:
            return [*(f"would erase {name}" for name in names), "nothing is erased without --yes"]
        for place in chosen:
            audit.record("CheckpointErased", {"name": place.name, "step": place.step, "role": str(Role.DELETE)})
            place.erase()
        eraser.clear()
        for path in records:
            audit.record("DataRecordErased", {"name": path.name, "role": str(Role.DELETE)})
            destroy_file(FileOperations(), path)
    return [*(f"erased {name}" for name in names), *([_PLAIN] if records else []), ELSEWHERE]


def _records(run: Path) -> Sequence[Path]:
    records = RunLayout(run.absolute()).data_records
    if links := [path for path in records if path.is_symlink()]:
        msg = f"{links[0]} is a link, which is not followed, so nothing was erased: remove it and run the command again"
        raise StateError(msg)
    return records


def _folders(eraser: Eraser) -> Iterator[_Place]:
    for found in eraser.found():
        yield _Place(found.step, str(found.folder), found.is_encrypted, partial(eraser.erase, found))


def _copies(archive: CheckpointArchive | None) -> Iterator[_Place]:
    for info in [] if archive is None else archive.list():
        assert archive is not None
        step = info.progress.step
        is_encrypted = False
        with contextlib.suppress(CorruptCheckpoint):
            is_encrypted = archive.is_encrypted(step)
        yield _Place(step, info.location, is_encrypted, partial(archive.delete, step, for_good=True))


def _chosen(run: Path, places: Sequence[_Place], steps: Collection[int], *, is_alone: bool) -> Sequence[_Place]:
    if missing := sorted(set(steps) - {place.step for place in places}):
        msg = f"{run} holds no checkpoint of step {missing[0]} to erase: inspect lists the checkpoints"
        raise StateError(msg)
    folder = StoreFolder(run.absolute(), FileOperations())
    complete = [place.step for place in places if place.name == str(folder.checkpoint(place.step))]
    kept = {*folder.pinned(), max(complete, default=-1)}
    chosen = [place for place in places if (place.step in steps if steps else place.step not in kept)]
    if not chosen and is_alone:
        msg = (
            f"there is nothing to erase in {run}: the newest checkpoint and pinned ones are erased by their steps only"
        )
        raise StateError(msg)
    return chosen


def _refuse_plain(chosen: Sequence[_Place], *, unencrypted: bool) -> None:
    plain = [place.name for place in chosen if not place.is_encrypted]
    if plain and not unencrypted:
        msg = (
            f"{plain[0]} is not encrypted, and data on an SSD cannot be overwritten: --unencrypted deletes it "
            "nevertheless, but only the destruction of the disk, or of the disk's own key, makes that certain"
        )
        raise StateError(msg)


@contextlib.contextmanager
def _archive(settings: TrainSettings, run: str | None, *, is_writing: bool) -> Iterator[CheckpointArchive | None]:
    with archive_of(settings, is_writing=is_writing) as archive:
        if archive is not None and archive.owner() not in (None, run):
            msg = f"{archive.name} holds copies of another run, which are not erased: check the run's archive url"
            raise StateError(msg)
        yield archive


@contextlib.contextmanager
def on_disk(run: Path) -> Iterator[None]:
    """Within the block, turn an ``OSError`` of an erasure in the folder ``run`` into a ``StateError`` with a remedy.

    Raises ``StateError`` in that case.
    """
    try:
        yield
    except OSError as error:
        msg = f"the erasure in {run} was done in part or not at all, {explain(error)}, and repeat the command"
        raise StateError(msg) from error


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
        _refuse_plain_tokens(place)
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


def _refuse_plain_tokens(place: TokenPlace) -> None:
    if not holds_encrypted(place.root):
        msg = (
            f"the tokens in {place.path} are not encrypted, so there is no key to destroy: delete the folder, and "
            "destroy the disk if it must be certain that nobody reads them"
        )
        raise StateError(msg)


def _description(found: ErasableTokens) -> str:
    return f"{found.folder} ({counted(found.num_shards, 'shard')})"
