"""Finds the files of token ids at a path, and downloads remote ones."""

from __future__ import annotations

import glob
import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs

from holdfast.adapters.shared.token_store.folder_operations import safe_name, storing
from holdfast.adapters.token_source.shards import TokenFile, stamp_of
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.urls import describe, hide_user

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.adapters.shared.token_store.token_folder import TokenFolder

_log = logging.getLogger(__name__)

SUFFIXES = (".npy", ".bin", ".parquet", ".arrow")

_MAGIC = re.compile(r"[*?\[]")
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "checksum", "mtime", "LastModified", "last_modified", "created")


def find_files(path: str, folder: TokenFolder) -> Sequence[TokenFile]:
    """Return the files that ``path`` names: itself, those below a folder, or those that a glob matches.

    ``path`` is local, or a URL of any scheme that fsspec supports: remote files are downloaded into ``folder``, and
    again when their version changes. Raises ``DataError`` if there are no files or they cannot be read.
    """
    is_url = "://" in path and not path.startswith("file://")
    found = list(_fetch(path, folder) if is_url else _local(path.removeprefix("file://")))
    if not found:
        msg = f"no file of token ids ({', '.join(SUFFIXES)}) is at {_plain(path)}: check the path"
        raise DataError(msg)
    return found


def _local(path: str) -> Iterator[TokenFile]:
    if Path(path).is_dir():
        _tell_splits(Path(path))
        names = [str(each) for each in sorted(Path(path).rglob("*")) if each.suffix.lower() in SUFFIXES]
        _tell_unlisted([Path(name) for name in names])
    elif Path(path).exists():
        names = [path]
    else:
        names = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    place = os.path.abspath(path if Path(path).exists() else _fixed_part(path))  # noqa: PTH100 - as below
    for name in names:
        absolute = Path(os.path.abspath(name))  # noqa: PTH100 - resolve() would follow links
        if absolute.is_file():
            _check_suffix(str(absolute))
            stamp = stamp_of(absolute)
            yield TokenFile(str(absolute), absolute, etag=stamp, stamp=stamp, place=place)


def _tell_splits(folder: Path) -> None:
    splits = sorted(place.parent.name for place in folder.glob("*/state.json"))
    if len(splits) > 1 and (folder / "dataset_dict.json").is_file():
        _log.warning(
            "%s holds the splits %s of a dataset, and all of them are read: name the folder of one to read only that",
            folder,
            ", ".join(splits),
        )


def _tell_unlisted(files: Sequence[Path]) -> None:
    for state in {file.with_name("state.json") for file in files if file.suffix.lower() == ".arrow"}:
        listed: set[str] = set()
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            entries = json.loads(state.read_text(encoding="utf-8"))["_data_files"]
            listed = {entry["filename"] for entry in entries}
        beside = [file.name for file in files if file.parent == state.parent and file.suffix.lower() == ".arrow"]
        if listed and (others := sorted({*beside} - listed)):
            _log.warning(
                "%s holds Arrow files that are no part of the dataset saved there, results of map or filter or files "
                "of an older one (%s), and all of them are read: remove them, or name the files to read",
                state.parent,
                ", ".join(others),
            )


def _fetch(url: str, folder: TokenFolder) -> Iterator[TokenFile]:
    try:
        file_system, root = url_to_fs(url)
        place = _plain(file_system.unstrip_protocol(_fixed_part(root)))
        for remote in sorted(_listed(file_system, root)):
            info = file_system.info(remote)  # some listings lack the version of a file
            name = _plain(file_system.unstrip_protocol(remote))
            _check_suffix(name)
            version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
            etag = f"{info.get('size')}-{version}"
            path = _download(file_system, remote, f"{name} {etag}", folder)
            yield TokenFile(name, path, etag, stamp_of(path), place)
    except ImportError as error:
        msg = f"{_plain(url)} needs a package that is not installed ({describe(error)}): install it"
        raise ConfigurationError(msg) from error
    except (DataError, ConfigurationError):
        raise
    except Exception as error:  # each file system has its own errors
        msg = f"{_plain(url)} cannot be read ({describe(error)}): check it and your access"
        raise DataError(msg) from error


def _listed(file_system: Any, root: str) -> Sequence[str]:
    if _MAGIC.search(root):
        return [path for path, info in file_system.glob(root, detail=True).items() if info["type"] == "file"]
    if file_system.isdir(root):
        return [path for path in file_system.find(root) if _suffix(path) in SUFFIXES]
    return [root]


def _download(file_system: Any, remote: str, key: str, folder: TokenFolder) -> Path:
    place = folder.root / ".downloads"
    target = place / f"{safe_name(key)}{_suffix(remote)}"
    with storing("downloads", folder.root):
        folder.prepare()
        folder.make_folder(place)
    if not target.exists():
        with folder.draft() as draft:
            file_system.get_file(remote, str(draft / target.name))
            with storing(target.name, place):
                folder.files.sync_file(draft / target.name)
                folder.files.replace_file(draft / target.name, target)
                folder.files.sync_folder(place)
    return target


def _fixed_part(path: str) -> str:
    magic = _MAGIC.search(path)
    return path[: magic.start()].rpartition("/")[0] if magic else path.rstrip("/")


def _check_suffix(name: str) -> None:
    if _suffix(name) not in SUFFIXES:
        msg = f"the suffix of {name} does not say how its token ids are stored: it must be one of {', '.join(SUFFIXES)}"
        raise DataError(msg)


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _plain(url: str) -> str:
    return hide_user(url, "").partition("?")[0]
