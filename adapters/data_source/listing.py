"""Lists the files that a path, folder or glob names on any file system of fsspec."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, final

import yaml
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from holdfast.adapters.data_source.remote_file import ListedFile, local_etag
from holdfast.adapters.shared.network.hub_names import nearest_name
from holdfast.adapters.shared.network.retry import http_status, is_transient, retry, within
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.sizes import counted
from holdfast.domain.urls import describe, without_secrets
from holdfast.ports.data_source import Remark, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fsspec import AbstractFileSystem

    from holdfast.adapters.data_source.file_access import FileAccess
    from holdfast.adapters.data_source.file_reader import FileReader, SourceFile

_MAGIC = re.compile(r"[*?\[]")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp requests"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
}
# the names of file systems for the version of a file, the most reliable first
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "checksum", "mtime", "LastModified", "last_modified", "created")


def list_files(url: str, exclude: Sequence[str], access: FileAccess) -> Iterator[ListedFile]:
    """Yield the files that ``url`` names: itself, those below a folder, or those that a glob matches.

    Hidden files and folders (``.git``) are left out unless a glob spells the dot, and so are those that ``exclude``
    matches: a pattern without a slash matches names of files and folders below ``url``, one with a slash the path below
    ``url``. Links to folders are followed, and links to no file are marked. Transient errors are retried. Raises
    ``DataError`` if ``url`` cannot be listed, ``ConfigurationError`` if a package for its scheme is missing.
    """
    file_system, root = _open(url)
    place = RemoteFileSystem(file_system, access)
    with _listing(url):
        file_system.invalidate_cache()  # some cache listings without a time limit
        info = place.info(root)
        if not info and not _MAGIC.search(root):
            _raise_missing(url)
        if info.get("type") == "file":
            yield _stored(place, root, info, base=root, is_chosen=True)
            return
        is_folder = info.get("type") == "directory"
        search = _Search(place, root, root if is_folder else _fixed_part(root), is_folder, exclude)
        for path, info in search.hits():
            yield _stored(place, path, info, base=search.base, is_chosen=not is_folder)


def reach(url: str, access: FileAccess) -> None:
    """Ask whether there is what ``url`` names, of a glob the folder above it, without listing what is in it.

    Raises ``DataError`` if there is not or the place does not answer, and ``ConfigurationError`` as ``list_files``.
    """
    file_system, root = _open(url)
    with _listing(url):
        file_system.invalidate_cache()
        asked = _fixed_part(root) if _MAGIC.search(root) else root
        if not RemoteFileSystem(file_system, access).info(asked or "/"):
            _raise_missing(url)


@contextmanager
def _listing(url: str) -> Iterator[None]:
    """Turn the errors of a file system within the block into ``DataError``."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # each file system has its own errors
        msg = f"{without_secrets(url)} cannot be listed ({describe(error)}): check data.path and your access to it"
        raise DataError(msg) from error


@dataclass(frozen=True, slots=True)
class _Search:
    place: RemoteFileSystem
    root: str
    base: str
    is_folder: bool
    exclude: Sequence[str]

    def hits(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self.is_folder and not _MAGIC.search(self.root):
            return
        matches = (lambda _: True) if self.is_folder else re.compile(glob_translate(self.root)).match
        depth = None if self.is_folder or "**" in self.root else self.root.removeprefix(self.base).count("/")
        if not self.place.is_local:
            found = self.place.files(self.base, depth)
            yield from ((path, info) for path, info in found if matches(path) and not self._skips(path))
        elif Path(self.base or "/").is_dir():
            yield from ((path, {}) for path in self._walk(self.base, depth) if matches(path))

    def _walk(self, folder: str, depth: int | None, above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
        status = Path(folder or "/").stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above or depth == 0:  # a link may lead back to a folder above it
            return
        with os.scandir(folder or "/") as entries:
            found = [
                (f"{folder}/{entry.name}", entry.is_dir(), entry.is_file() or entry.is_symlink()) for entry in entries
            ]
        for path, is_folder, is_file in found:
            if self._skips(path):
                continue
            if is_folder:
                yield from self._walk(path, None if depth is None else depth - 1, (*above, identity))
            elif is_file:
                yield path

    def _skips(self, path: str) -> bool:
        relative = path.removeprefix(self.base).lstrip("/")
        names = relative.split("/")
        spells_the_dot = "/." in self.root.removeprefix(self.base)
        if not spells_the_dot and any(name.startswith(".") for name in names):
            return True
        return any(
            fnmatchcase(relative, pattern) if "/" in pattern else any(fnmatchcase(name, pattern) for name in names)
            for pattern in self.exclude
        )


def _raise_missing(url: str) -> NoReturn:
    shown = without_secrets(url)
    if "," in url:
        advice = f"several paths are written as a list, data.path=[{shown}]"
    else:
        nearest = None if "://" in url else nearest_name(Path(url))
        advice = f"did you mean {nearest}?" if nearest else "check data.path"
    msg = f"there is no file or folder {shown}: {advice}"
    raise DataError(msg)


def _open(url: str) -> tuple[AbstractFileSystem, str]:
    scheme = url.partition("://")[0]
    try:
        file_system, root = url_to_fs(url)
    except ImportError as error:
        install = f"run: pip install {_PACKAGES[scheme]}" if scheme in _PACKAGES else describe(error)
        msg = f"{without_secrets(url)} needs a package that is not installed: {install}"
        raise ConfigurationError(msg) from error
    except Exception as error:  # each file system has its own errors
        msg = f"{without_secrets(url)} cannot be opened ({describe(error)}): check data.path"
        raise DataError(msg) from error
    return file_system, root.rstrip("/") or root


def _fixed_part(root: str) -> str:
    magic = _MAGIC.search(root)
    return root[: magic.start() if magic else None].rpartition("/")[0]


def _stored(place: RemoteFileSystem, path: str, info: dict[str, Any], *, base: str, is_chosen: bool) -> ListedFile:
    file_system = place.file_system
    if place.is_local:
        if path != base and not Path(path).is_file():
            return ListedFile(Unit(path, 0, ""), path, file_system, None, is_chosen, base, is_dangling=True)
        unit = Unit(path, Path(path).stat().st_size, local_etag(path))
        return ListedFile(unit, path, file_system, None, is_chosen, base)
    name, base = (without_secrets(file_system.unstrip_protocol(each)) for each in (path, base))
    if info.get("size") is None:
        info = place.info(path)  # HTTP lists a page of links, which has no sizes
    if info.get("size") is None:
        msg = f"{name} cannot be read in ranges, as its server reports no size: copy it elsewhere"
        raise DataError(msg)
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    unit = Unit(name, int(info["size"]), f"{version}-{info['size']}")
    return ListedFile(unit, path, file_system, info.get("ETag"), is_chosen, base)


T = TypeVar("T")

_FLAT = {"s3", "s3a", "gs", "gcs", "hf"}  # they list all that is below a folder at once
_GONE = (404, 410)


@final
@dataclass(frozen=True, slots=True)
class RemoteFileSystem:
    """Lists ``file_system`` with retries; raises its errors if they are permanent or last too long."""

    file_system: AbstractFileSystem
    access: FileAccess

    @property
    def is_local(self) -> bool:
        """Return whether it is this machine's disk."""
        return isinstance(self.file_system, LocalFileSystem)

    def info(self, path: str) -> dict[str, Any]:
        """Return the file system's information about ``path``, empty if it does not exist."""
        call = partial(self.file_system.info, path)
        try:
            if self.is_local:
                return dict(call())
            return dict(self._asked(lambda left: within(min(left, self.access.stall_seconds), call)))
        except FileNotFoundError as error:
            if _is_without_bucket(error):
                raise
            return {}

    def files(self, folder: str, depth: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the files down to ``depth`` levels below a remote ``folder``, each with its information.

        ``walk`` of fsspec would skip a folder that cannot be listed, and its files would be missing.
        """
        if depth is None and not _FLAT.isdisjoint(_protocols(self.file_system)):
            entries = self._asked(lambda _: self.file_system.find(folder, detail=True))
            yield from ((path, info) for path, info in entries.items() if info["type"] != "directory")
            return
        for info in self._list(folder):
            path = info["name"].rstrip("/")
            if path == folder.rstrip("/"):
                continue
            if info["type"] != "directory":
                yield info["name"], info
            elif depth is None or depth > 1:
                yield from self.files(path, None if depth is None else depth - 1)

    def _list(self, folder: str) -> list[dict[str, Any]]:
        try:
            return sorted(
                self._asked(lambda _: self.file_system.ls(folder, detail=True)), key=lambda info: str(info["name"])
            )
        except FileNotFoundError:  # it was deleted meanwhile
            return []

    def _asked(self, call: Callable[[float], T]) -> T:
        numbers = count()

        def attempt(left: float) -> T:
            if next(numbers):
                self.access.counter.add(read_retries=1)
            try:
                return call(left)
            except FileNotFoundError as error:
                if (cause := _hidden_by(error)) is not None:
                    raise cause from None
                raise

        return retry(attempt, self.access.policy, is_transient)


def _hidden_by(error: FileNotFoundError) -> BaseException | None:
    """Return the cause of an HTTP failure, which fsspec reports as a missing file; None if the file is missing."""
    cause = error.__cause__
    if cause is None or isinstance(cause, FileNotFoundError):
        return None
    status = http_status(cause)
    return cause if isinstance(cause, OSError) or (status is not None and status not in _GONE) else None


def _is_without_bucket(error: FileNotFoundError) -> bool:
    response = getattr(error.__cause__, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket"


def _protocols(file_system: AbstractFileSystem) -> tuple[str, ...]:
    protocol = file_system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(r"[^-._ 0-9]+")
_RESULT = re.compile(r"cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow")  # of map and filter of the datasets library
_SHARD = re.compile(r"(?<=-)\d{5}(?=-of-\d{5}\b)")
_CARD = re.compile(rb"---\s*\n(.*?\n)---", re.DOTALL)
_MOST_NAMES = 3
_MOST_PATHS = 8


@final
@dataclass(slots=True)
class FolderChoice:
    """What the folder ``path`` holds: the names of the files that are not read, by the reason."""

    path: str
    unknown: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    objects: list[SourceFile] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    other_splits: dict[str, list[str]] = field(default_factory=dict)
    is_without_train: bool = False
    doubts: list[str] = field(default_factory=list)

    def choose(self, files: Sequence[SourceFile], reader: FileReader) -> list[SourceFile]:
        """Return those of ``files`` that are trained on, and remember the others.

        Plain text is left out beside records, and so are the files of other splits beside those of a split ``train``,
        as far as names of files and folders tell. So are Arrow files that are no part of a saved dataset, but results
        that the datasets library keeps or an earlier state of it.
        """
        stale = self._stale(files, reader)
        self.left_out["stale"] = [_name(file.stored) for file in stale]
        files = [file for file in files if file not in stale]
        chosen = self._of_train(files)
        self.doubts += _doubts(chosen, is_split=not self.is_without_train)
        records = [file for file in files if file.format != "txt"]
        for file in files if records else ():
            if _name(file.stored) == "README.md" and (doubt := _doubt_of_card(reader.begin(file), records, chosen)):
                self.doubts.append(doubt)
        return chosen

    def _stale(self, files: Sequence[SourceFile], reader: FileReader) -> list[SourceFile]:
        stale: list[SourceFile] = []
        rest: dict[str, list[SourceFile]] = {}
        for file in files:
            if file.format == "arrow" and _RESULT.fullmatch(_last_name(file)):
                stale.append(file)
            elif file.format == "arrow":
                rest.setdefault(_folder(file), []).append(file)
        for state in self.objects:
            beside = rest.get(_folder(state), [])
            listed = _listed_in(state, reader) if beside and _last_name(state) == "state.json" else set()
            others = [file for file in beside if _last_name(file) not in listed]
            if len(others) < len(beside):
                stale += others
            elif listed:
                names = [_name(file.stored) for file in beside]
                self.doubts.append(
                    f"{_name(state.stored)} lists other Arrow files than are there, so all of these are read: "
                    f"{shown_names(names)}"
                )
        return stale

    def _of_train(self, files: Sequence[SourceFile]) -> list[SourceFile]:
        self.left_out["empty"] = [_name(file.stored) for file in files if file.stored.unit.size == 0]
        if any(file.format != "txt" and file.stored.unit.size for file in files):
            self.left_out["prose"] = [_name(file.stored) for file in files if file.format == "txt"]
            files = [file for file in files if file.format != "txt"]
        splits = [_split_of(file) for file in files]
        self.is_without_train = "train" not in splits
        for file, split in zip(files, splits, strict=True):
            if split not in ("", "train"):
                self.other_splits.setdefault(split, []).append(_name(file.stored))
        if self.is_without_train:
            return list(files)
        return [file for file, split in zip(files, splits, strict=True) if split in ("", "train")]

    def remarks(self) -> Iterator[Remark]:
        """Yield what is not read, one sentence for each reason, and other splits that are read without one to train."""
        place = without_secrets(self.path)
        lists = (
            (self.unknown, "not read, as the suffix is not that of a format", ""),
            (
                self.left_out.get("stale"),
                "no part of the saved dataset, but of work with it or of an older one, and not read",
                "",
            ),
            (
                [_name(file.stored) for file in self.objects],
                "not read, as it is neither a JSON array of records nor an object on each line",
                "",
            ),
            (self.dangling, "not read, as the link leads to no file", ""),
            (self.left_out.get("empty"), "empty", ""),
            (
                self.left_out.get("prose"),
                "plain text beside records and not read",
                "; list what is to be read in the path too",
            ),
        )
        for names, reason, remedy in lists:
            if names:
                yield Remark(
                    f"{_files(names)} in {place} {_is(names)} {reason}: {shown_names(names)}{remedy}", len(names)
                )
        yield from (Remark(f"{place}: {doubt}") for doubt in self.doubts)
        for split, names in sorted(self.other_splits.items()):
            subject = f"{_files(names)} in {place} {_is(names)}"
            if self.is_without_train:
                reason = "read, as no file is called train, and may be of the split"
                yield Remark(f"{subject} {reason} {split}: {shown_names(names)}")
                continue
            setting = f"evaluation.sets.{split}.path={self._path_of(names)}"
            reason = f"of the split {split} and not trained on: {shown_names(names)}; evaluate on it with {setting}"
            yield Remark(f"{subject} {reason}", len(names))

    def _path_of(self, names: Sequence[str]) -> str:
        """Return what to write for a path that holds the files of ``names`` and no other file that is read."""
        base = without_secrets(self.path).rstrip("/")
        paths = [f"{base}/{name}" for name in sorted(names)]
        if len(paths) == 1:
            return paths[0]
        if len(paths) <= _MOST_PATHS:
            return f"[{','.join(paths)}]"
        first = PurePosixPath(names[0])
        number = next((at for at, part in enumerate(first.parts) if _word_of(part)), len(first.parts) - 1)
        pattern = f"*{_word_of(first.parts[number])}*"
        return "/".join([base, *first.parts[:number], pattern if number == len(first.parts) - 1 else f"{pattern}/**"])


def _split_of(file: SourceFile) -> str:
    """Return the split that the name of ``file``, or else the nearest folder above it, tells; empty for none."""
    path = PurePosixPath(_name(file.stored).lower())
    if file.format != "txt":
        return next((_SPLITS[word] for part in reversed(path.parts) if (word := _word_of(part))), "")
    if not {".txt", ".text"} & set(path.suffixes[-2:]):
        return ""  # programs are called test, too
    # texts have titles of several words
    stems = [path.name.partition(".")[0], *reversed(path.parts[:-1])]
    return next((_SPLITS[word] for stem in stems if (word := _word_of(stem)) and _WORD.findall(stem) == [word]), "")


def _word_of(part: str) -> str:
    return next((word for word in _WORD.findall(part) if word.lower() in _SPLITS), "")


def _doubts(chosen: Sequence[SourceFile], *, is_split: bool) -> Iterator[str]:
    """Yield what is read of a folder though it may be more than is meant; ``is_split`` if there is a split train."""
    others = [_name(file.stored) for file in chosen if is_split and not _split_of(file)]
    if others:
        yield f"{_files(others)} of no split {_is(others)} read beside those of the split train: {shown_names(others)}"
    records = [file for file in chosen if file.format != "txt" and file.stored.unit.size]
    sets: dict[str, set[str]] = {}
    for file in records:
        if _SHARD.search(name := _name(file.stored)):
            sets.setdefault(_folder(file), set()).add(_SHARD.sub("*", name))
    for several in sets.values():
        if len(several) > 1:
            yield (
                f"several sets of shards are read together: {shown_names([*several])}; if they are splits, or one is "
                "an earlier export, set data.path to one of them"
            )
    forms = Counter(f"{file.format}.{file.compression}".removesuffix(".none") for file in records)
    if len(forms) > 1:
        shown = ", ".join(f"{count} {form}" for form, count in sorted(forms.items()))
        yield f"files of several formats are read: {shown}; if they hold the same records, set data.path to one"


def _folder(file: SourceFile) -> str:
    return str(PurePosixPath(_name(file.stored)).parent)


def _listed_in(file: SourceFile, reader: FileReader) -> set[str]:
    """Return the names of the files of a saved dataset that ``file`` lists, nothing if it is no such list."""
    content = reader.begin(file, -1)
    if content != reader.begin(file, -1):  # nothing else would notice that a wrong list leaves out other files
        msg = f"{file.name} is not the same when it is read again: check the disk it is on"
        raise DataError(msg)
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        return {str(entry["filename"]) for entry in json.loads(content)["_data_files"]}
    return set()


def _doubt_of_card(card: bytes, records: Sequence[SourceFile], chosen: Sequence[SourceFile]) -> str:
    """Return what to say where a dataset's ``card`` names other files to train on than those ``chosen``."""
    configs = None
    with suppress(yaml.YAMLError, ValueError, AttributeError, RecursionError):
        configs = yaml.safe_load(head[1]).get("configs") if (head := _CARD.match(card)) else None
    configs = [each for each in configs if isinstance(each, dict)] if isinstance(configs, list) else []
    ours = {_name(file.stored) for file in chosen}
    names = [_name(file.stored) for file in records]
    choices = [
        {name for name in names if any(_matches(name, each) for each in _patterns_of(config))} for config in configs
    ]
    if ours in choices or not configs:
        return ""
    known = [name for config in configs if isinstance(name := config.get("config_name", "default"), str)]
    return (
        f"README.md names other files to train on, by configuration ({shown_names(known)}), and is not followed: "
        "data.kind=huggingface reads one, that of data.name"
    )


def _patterns_of(config: Mapping[str, object]) -> list[str]:
    """Return the globs of the files of the split train; entries that are no paths are left out."""
    given = config.get("data_files", "**")
    if isinstance(given, dict):
        given = given.get("train", [])
    paths: list[object] = []
    for entry in given if isinstance(given, list) else [given]:
        found = entry
        if isinstance(entry, dict):
            found = entry.get("path") if entry.get("split", "train") == "train" else None
        paths += found if isinstance(found, list) else [found]
    folder = config.get("data_dir")
    return [str(PurePosixPath(folder if isinstance(folder, str) else "", path)) for path in paths if type(path) is str]


def _matches(name: str, pattern: str) -> bool:
    if "**" not in pattern and name.count("/") != pattern.count("/"):
        return False
    return fnmatchcase(name, pattern) or fnmatchcase(name, pattern.replace("**/", ""))


def _name(file: ListedFile) -> str:
    return file.below.lstrip("/")


def _last_name(file: SourceFile) -> str:
    return PurePosixPath(_name(file.stored)).name


def _files(names: Sequence[str]) -> str:
    return counted(len(names), "file")


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def shown_names(names: Sequence[str]) -> str:
    """Return the first of ``names`` for a sentence."""
    return ", ".join(sorted(names)[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
