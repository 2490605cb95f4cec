"""Files of token ids made by other programs."""

from __future__ import annotations

import glob
import json
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, final

from fsspec.core import url_to_fs
from typing_extensions import override

from holdfast.adapters.shared.files.committed_folder import make_folders
from holdfast.adapters.shared.token_store.derived_arrays import DerivedArrayStore, LruCache
from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations, safe_name, storing
from holdfast.adapters.shared.token_store.token_folder import TokenFolder
from holdfast.adapters.token_source.columnar_files import columnar_shards, columns_used
from holdfast.adapters.token_source.raw_ids import binary_shards, raw_form
from holdfast.adapters.token_source.shards import (
    ReadOptions,
    TokenFile,
    cached_shards,
    fingerprint_of,
    is_token_cache,
    stamp_of,
)
from holdfast.domain.data.data_files import DataFile, DataFiles
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.urls import describe, hide_user
from holdfast.ports.basic import BasicTokenSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays
    from holdfast.adapters.token_source.shards import FileShard
    from holdfast.ports.token_source import Tokens, TokenShard

_MAX_OPEN = 64


@final
class FilesTokenSource(BasicTokenSource):
    """Reads token ids from ``paths``: files, folders, globs, local or URLs, and token caches of Holdfast.

    - ``.npy``: one dimension of integers. ``.bin``, and ``.npy`` without a header of numpy: raw little-endian ids of
      ``dtype``. ``auto`` reads the header of llm.c, ``{"dtype": ...}`` in a JSON file beside it (``x.json`` or
      ``x.bin.json``) or Megatron's index ``x.idx``, else finds the type as which all ids are in the vocabulary. The
      header of litdata's chunks is skipped. All are read in place (int64 is narrowed shard by shard), and a document
      ends after each ``end_of_text``; ids after the last one are a document too, without end-of-text.
    - ``.parquet``, ``.arrow``: ``column`` contains lists of integers; a document ends with its row and after each
      ``end_of_text``, which is added to a row without one. They are converted once. ``labels`` (-100), ``loss_mask``,
      ``assistant_masks`` and ``completion_mask`` become the loss mask, and a row of which not all is trained on is one
      document as it is. Padding (``attention_mask``) is left out, and ``position_ids`` begin documents.
    - A token cache, or the folder of a dataset in it, unchanged.
    Shards are sorted by name; a mapping as ``paths`` gives the places of the paths when that order was chosen.

    The first call of ``shards`` reads all new files, finds the documents and checks that all ids are below
    ``vocabulary_size``. Its results, conversions and downloads are stored in ``folder``, which must be new, empty, or a
    token cache, whose budget does not count them. A shard is about ``shard_tokens`` tokens of one file.
    """

    def __init__(
        self,
        paths: Sequence[str] | Mapping[str, str],
        *,
        folder: Path,
        end_of_text: int,
        vocabulary_size: int,
        dtype: Literal["auto", "uint16", "uint32", "int32", "int64"] = "auto",
        column: str = "input_ids",
        shard_tokens: int = 1 << 25,
        verify: bool = True,
    ) -> None:
        self._paths = list(paths)
        self._places = list(paths.values()) if isinstance(paths, Mapping) else []
        self._options = ReadOptions(end_of_text, vocabulary_size, dtype, column, shard_tokens)
        self._verify = verify
        self._folder = TokenFolder(folder.absolute(), TokenFileOperations())
        self._kept = DerivedArrayStore(self._folder, verify=verify, max_open=_MAX_OPEN)
        self._recent: LruCache[str, Tokens] = LruCache(_MAX_OPEN)
        self._lock = Lock()
        self._pieces: Mapping[str, FileShard] | None = None
        self._numbers: Mapping[str, int] = {}

    def with_rules(self, rules: int) -> FilesTokenSource:
        """Return this source, whose files are read by ``rules`` from now on."""
        self._options = replace(self._options, rules=rules)
        return self

    @override
    def shards(self) -> Sequence[TokenShard]:
        return [piece.shard for piece in self._found().values()]

    @override
    def open(self, shard: TokenShard) -> Tokens:
        tokens = self._recent.get(shard.name)
        if tokens is None:
            tokens = self._piece(shard).open()
            self._recent.put(shard.name, tokens)
        return tokens

    @override
    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        place = self._prepared("derived")
        path = place / f"{safe_name(f'{shard.fingerprint} {key}')}.safetensors"
        return self._kept.get(path, lambda: make(self.open(shard)))

    @override
    def fingerprint(self) -> str:
        return fingerprint_of([(shard.name, shard.fingerprint) for shard in self.shards()])

    @override
    def files(self) -> DataFiles:
        by_part: dict[tuple[int, str], list[TokenShard]] = {}
        places = dict(enumerate(self._paths))
        for name, piece in self._found().items():
            number = self._numbers[name]
            by_part.setdefault((number, piece.file.removeprefix(piece.place)), []).append(piece.shard)
            places[number] = piece.place
        files = [
            DataFile(
                below.lstrip("/") if len(places) == 1 else f"data.path[{number}]{below}",
                sum(shard.num_tokens for shard in shards),
                "tokens",
                "known",
                fingerprint_of([shard.fingerprint for shard in shards]),
            )
            for (number, below), shards in by_part.items()
        ]
        options = fingerprint_of(self._options.end_of_text, self._options.shard_tokens)
        own = [places[number] for number in sorted(places)]
        return DataFiles(options, {"": own}, {"": self._places or own}, files)

    def _piece(self, shard: TokenShard) -> FileShard:
        piece = self._found().get(shard.name)
        if piece is None or piece.shard != shard:
            msg = f"{shard.name} differs from these files as they are now: run the same command to read the files again"
            raise DataError(msg)
        return piece

    def _found(self) -> Mapping[str, FileShard]:
        with self._lock:
            if self._pieces is None:
                numbered = [
                    (number, piece) for number, path in enumerate(self._paths) for piece in self._pieces_at(path)
                ]
                if not numbered:
                    msg = f"there are no tokens at {', '.join(self._paths)}: check the paths"
                    raise DataError(msg)
                self._numbers = {piece.shard.name: number for number, piece in numbered}
                by_name = {piece.shard.name: (number, piece) for number, piece in numbered}
                self._pieces = {
                    name: piece for name, (_, piece) in sorted(by_name.items(), key=lambda entry: self._rank(*entry[1]))
                }
            return self._pieces

    def _rank(self, number: int, piece: FileShard) -> str:
        place = self._places[number] if self._places else piece.place
        return f"{place}{piece.shard.name.removeprefix(piece.place)}"

    def _pieces_at(self, path: str) -> Iterator[FileShard]:
        if "://" not in path and is_token_cache(Path(path)):
            yield from cached_shards(Path(path).absolute(), self._options, verify=self._verify, max_open=_MAX_OPEN)
            return
        for file in find_files(path, self._folder):
            if file.path.suffix.lower() in {".npy", ".bin"}:
                form = raw_form(file, self._options)
                options = self._options if form is None else replace(self._options, dtype=form.key)
                folder = self._prepared(self._key_of(file, options))
                yield from binary_shards(file, form, options, self._kept, folder)
            else:
                used = "".join(f" {name}" for name in columns_used(file, self._options))
                folder = self._prepared(self._key_of(file, self._options) + used)
                yield from columnar_shards(file, self._options, self._kept, folder)

    def _key_of(self, file: TokenFile, options: ReadOptions) -> str:
        return f"{options.to_key()} {file.etag} {file.name}"

    def _prepared(self, key: str) -> Path:
        place = self._folder.root / ".files" / safe_name(key)
        with storing("the information about the files", self._folder.root):
            self._folder.prepare()
            make_folders(self._folder.files, place)
        return place


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
        make_folders(folder.files, place)
    if not target.exists():
        with folder.draft() as draft:
            file_system.get_file(remote, str(draft / target.name))
            with storing(target.name, place):
                folder.files.sync_file(draft / target.name)
                folder.files.rename(draft / target.name, target)
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
