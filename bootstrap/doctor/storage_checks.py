"""Checks of the file systems of a run: writable, large enough, fast enough, with locks, atomic renames and fsync."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from holdfast.adapters.shared.files.file_operations import FileOperations, explain
from holdfast.bootstrap.adapter_choice.data_sources import open_files
from holdfast.bootstrap.doctor.finding import Check, Finding, bad, doubtful, failed, good
from holdfast.bootstrap.doctor.named_places import is_on_disk, text_sections
from holdfast.bootstrap.stages.identify.data_form import free_bytes, nearest_folder
from holdfast.configs.sections.sources import FilesSource
from holdfast.domain.errors import TrainingError
from holdfast.domain.sizes import shown_size
from holdfast.ports.data_source import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.data_source import DataSource

_BLOCK = 1 << 20
_WRITTEN = 16 * _BLOCK
_SLOW = 20 * 2**20  # bytes a second
_SLOW_SYNC_SECONDS = 2.0
_RENAMES = 100
_CONTENT = 1 << 16
_LEAST_ROOM = 32 * 2**20  # bytes, for the records of a run and a tokenizer
_LEAST_TEMPORARY = 100 * 2**20
_LEAST_SHARED = 2**30


@dataclass(frozen=True, slots=True)
class CheckedFolder:
    """A folder of a run under its ``name``, the ``setting`` that moves it, and the bytes that it will take.

    ``at_once`` are the bytes without which nothing can be saved there, ``needed`` all that a run writes.
    """

    name: str
    path: Path
    setting: str
    at_once: float = 0.0
    needed: float = 0.0
    contents: str = "the files of the run"


def look_at_folder(place: CheckedFolder, files: FileOperations | None = None) -> Iterator[Finding]:
    """Yield the findings on the folder of ``place``, or on the nearest folder above it; nothing is left behind."""
    files = files or FileOperations()
    existing = nearest_folder(place.path)
    try:
        with scratch_folder(existing) as scratch:
            yield good(place.name, f"{place.path} can be written")
            free = free_bytes(existing)
            yield judge_space(place, free, has_inodes=os.statvfs(existing).f_favail != 0)
            for check in (check_speed, check_sync, check_locks, check_rename):
                yield _guarded(place, lambda check=check: check(place, scratch, files))  # type: ignore[misc]
    except OSError as error:
        yield bad(
            place.name, f"{place.path} cannot be written, {_cause(error)}", f"{_remedy(error)}, or {_move(place)}"
        )


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder in ``folder``, which is deleted after the block; raises ``OSError`` if there can be none."""
    scratch = Path(tempfile.mkdtemp(prefix=".holdfast-doctor-", dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def judge_space(place: CheckedFolder, free: float, *, has_inodes: bool = True) -> Finding:
    """Return whether ``free`` bytes are enough for what the run writes to ``place``."""
    name, least = f"{place.name} space", max(place.at_once, _LEAST_ROOM)
    if not has_inodes:
        return bad(name, "the file system has no inode left for another file", f"delete files, or {_move(place)}")
    if free < least:
        detail = f"{shown_size(free)} are free, and {place.contents} take {shown_size(least)} at least"
        return bad(name, detail, f"free some space there, or {_move(place)}")
    if free < place.needed:
        detail = f"{shown_size(free)} are free, and {place.contents} may take {shown_size(place.needed)}"
        return doubtful(name, detail, f"free some space there, keep less, or {_move(place)}")
    needed = f", and {place.contents} take about {shown_size(place.needed)}" if place.needed else ""
    return good(name, f"{shown_size(free)} are free{needed}")


def judge_speed(place: CheckedFolder, num_bytes: int, seconds: float, sync_seconds: float) -> Finding:
    """Return whether ``num_bytes`` were written in few ``seconds``, of which the sync took ``sync_seconds``."""
    speed = num_bytes / max(seconds, 1e-6)
    detail = f"{shown_size(speed)}/s, {shown_size(num_bytes)} with fsync in {seconds:.2f} s"
    if speed < _SLOW or sync_seconds > _SLOW_SYNC_SECONDS:
        remedy = f"use a faster disk ({_move(place)}), or save less often (state_store.every)"
        return doubtful(f"{place.name} speed", detail, remedy)
    return good(f"{place.name} speed", detail)


def check_sync(place: CheckedFolder, scratch: Path, files: FileOperations) -> Finding:
    """Return whether bytes and names can be made durable."""
    try:
        files.write_file(scratch / "synced", b"content")
        files.sync_file(scratch / "synced")
        files.sync_folder(scratch)
    except OSError as error:
        return bad(f"{place.name} fsync", f"fsync fails, {_cause(error)}", f"{_move(place)} to a local file system")
    return good(f"{place.name} fsync", "files and folders can be made durable")


def check_locks(
    place: CheckedFolder, scratch: Path, _: FileOperations, *, flock: Callable[[int, int], object] | None = None
) -> Finding:
    """Return whether a second lock of a file is refused, which keeps two runs from one folder."""
    flock = flock or fcntl.flock
    name = f"{place.name} locks"
    remedy = f"mount it with locks (NFS without nolock, Lustre with flock), or {_move(place)} to a local file system"
    with (scratch / "lock").open("wb") as first, (scratch / "lock").open("rb+") as second:
        try:
            flock(first.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return bad(name, f"flock fails, {_cause(error)}", remedy)
        try:
            flock(second.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return good(name, "flock keeps a second process out")
    return bad(name, "flock lets two processes lock one file, so two runs could write to one folder", remedy)


def check_rename(place: CheckedFolder, scratch: Path, files: FileOperations) -> Finding:
    """Return whether a rename replaces a file at once and moves a folder, as the commit of a checkpoint requires."""
    name, remedy = f"{place.name} rename", f"{_move(place)} to a file system with atomic renames: a disk, not a bucket"
    target, draft = scratch / "target", scratch / "draft"
    contents = [bytes([number]) * _CONTENT for number in (65, 66)]
    target.write_bytes(contents[0])
    try:
        with _watched(target, contents) as torn:
            for number in range(_RENAMES):
                draft.write_bytes(contents[number % 2])
                files.rename(draft, target)
                if torn:
                    break
        files.make_folder(scratch / "folder")
        files.write_file(scratch / "folder" / "file", b"content")
        files.rename(scratch / "folder", scratch / "moved")
        is_moved = (scratch / "moved" / "file").read_bytes() == b"content" and not (scratch / "folder").exists()
    except OSError as error:
        return bad(name, f"a rename fails, {_cause(error)}", remedy)
    if torn:
        return bad(name, f"a rename is not atomic: a reader found {torn[0]}", remedy)
    if not is_moved:
        return bad(name, "the rename of a folder does not move its files", remedy)
    return good(name, "a rename replaces a file at once")


def check_temporary(folder: Path, free: float, wanted: str | None = None) -> Finding:
    """Return whether the ``folder`` of temporary files has enough ``free`` bytes and is the one in TMPDIR, if set."""
    if wanted and folder != Path(wanted).absolute():
        detail = f"TMPDIR is {wanted}, where no file can be written, so they are stored in {folder}"
        return doubtful("temporary files", detail, "create that folder, or set TMPDIR to one that can be written")
    detail = f"{shown_size(free)} are free in {folder}"
    if free < _LEAST_TEMPORARY:
        return doubtful("temporary files", detail, "free some space there, or set TMPDIR to a larger folder")
    return good("temporary files", detail)


def check_shared_memory(total: float | None, num_processes: int, *, has_gpu: bool) -> Finding:
    """Return whether /dev/shm, of ``total`` bytes or missing, is large enough for ``num_processes`` with NCCL."""
    name = "/dev/shm"  # noqa: S108  a name, no file is made there
    is_needed = num_processes > 1 and has_gpu
    detail = "it is missing" if total is None else f"it has {shown_size(total)}"
    if is_needed and (total is None or total < _LEAST_SHARED):
        remedy = "start the container with --shm-size=1g or more (Kubernetes: an emptyDir of medium Memory)"
        return bad(name, f"{detail}, too little for NCCL between {num_processes} processes", remedy)
    return good(name, detail)


def check_speed(place: CheckedFolder, scratch: Path, _: FileOperations) -> Finding:
    """Return whether some MiB are written and made durable fast enough."""
    room = shutil.disk_usage(scratch).free
    num_bytes = min(_WRITTEN, int(room // 4) // _BLOCK * _BLOCK) or min(_BLOCK, int(room // 4))
    began = time.monotonic()
    with (scratch / "written").open("wb", buffering=0) as file:
        for begin in range(0, num_bytes, _BLOCK):
            file.write(os.urandom(min(_BLOCK, num_bytes - begin)))
        written = time.monotonic()
        os.fsync(file.fileno())
    ended = time.monotonic()
    (scratch / "written").unlink()
    return judge_speed(place, num_bytes, ended - began, ended - written)


@contextmanager
def _watched(target: Path, contents: list[bytes]) -> Iterator[list[str]]:
    """Yield a list that gets a phrase once a reader of ``target`` finds none of ``contents``."""
    torn: list[str] = []
    over = Event()

    def watch() -> None:
        while not over.is_set() and not torn:
            try:
                if target.read_bytes() not in contents:
                    torn.append("a part of a file")
            except FileNotFoundError:
                torn.append("no file")
            except OSError:  # such as a stale handle, which says nothing about the name
                continue

    thread = Thread(target=watch, name="holdfast-rename", daemon=True)
    thread.start()
    try:
        yield torn
    finally:
        over.set()
        thread.join()


def _guarded(place: CheckedFolder, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except OSError as error:
        return bad(place.name, f"a file cannot be written, {_cause(error)}", f"{_remedy(error)}, or {_move(place)}")
    except Exception as error:  # noqa: BLE001  any error of a check is a finding
        return failed(place.name, error)


def _cause(error: OSError) -> str:
    return explain(error).rpartition(": ")[0]


def _remedy(error: OSError) -> str:
    if isinstance(error, NotADirectoryError):
        return "remove the file that is in the way"
    return explain(error).rpartition(": ")[2]


def _move(place: CheckedFolder) -> str:
    return f"set {place.setting}"


_REMEDY = "see that this is as it is meant"


def record_checks(settings: TrainSettings, seconds: float) -> Iterator[Check]:
    """Yield a check for each section of text files on this machine; files elsewhere are not downloaded."""
    task, is_skipped = settings.data.task, settings.data.on_error == "skip"
    for name, section in text_sections(settings):
        if isinstance(section, FilesSource) and all(map(is_on_disk, section.path)):
            open_source = partial(open_files, section, task=task)
            look = partial(check_first_record, f"{name}.text_field", open_source, is_skipped=is_skipped)
            yield Check(f"{name}.text_field", look, seconds)


def check_first_record(setting: str, open_source: Callable[[], DataSource], *, is_skipped: bool) -> Sequence[Finding]:
    """Return remarks on the files, and whether the first record can be used; another check says if there is none.

    With ``is_skipped`` a run leaves out such a record, but not a file of which no record can be read.
    """
    try:
        source = open_source()
        record = next(chain.from_iterable(source.read(unit) for unit in source.units()), None)
        remarks = [
            doubtful(setting, remark.sentence, _REMEDY) if remark.unused else good(setting, remark.sentence)
            for remark in source.remarks()
        ]
    except TrainingError:
        return []
    if record is None:
        return remarks
    if isinstance(record, Rejected):
        detail, _, remedy = record.reason.rpartition(": ")
        verdict = doubtful if is_skipped and record.end is not None else bad
        return [*remarks, verdict(setting, detail or record.reason, remedy if detail else "look at the file")]
    return [*remarks, good(setting, "the first record can be read")]
