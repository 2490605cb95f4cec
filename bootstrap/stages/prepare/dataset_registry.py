"""Finds the cached tokens of a source by its contents, wherever its files are now."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular, sealed, unsealed
from holdfast.bootstrap.stages.identify.data_form import hashing_phase
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.application.data.text_reader import TextReader
    from holdfast.configs.sections.data import CacheSettings
    from holdfast.domain.data.data_files import DataFiles
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource

_CACHING = 1  # raise it when the same documents become other shards or hashes

_FOLDER = ".contents"
_MOST = 32  # places that the same data are remembered at


@final
class Datasets:
    """Records, beside the tokens in ``folder``, hashes of the files that the tokens were made from.

    With this record the tokens of files that were moved, copied or touched are found again, and unchanged files need
    not be read. With ``is_secret`` nothing is recorded, as hashes would reveal the contents of an encrypted cache.
    ``show`` gets the progress while files are hashed.
    """

    def __init__(self, folder: Path, *, is_secret: bool = False, show: ShowPhase = show_nothing) -> None:
        self._folder = folder / _FOLDER
        self._is_secret = is_secret
        self._show = show
        self._found: dict[str, str] = {}

    def name_of(self, reader: TextReader) -> str:
        """Return the name of the dataset that holds, or will hold, the tokens of ``reader``."""
        key = cache_key(reader)
        if key not in self._found:
            self._found[key] = self._find(reader, key)
        return self._found[key]

    def keep(self, reader: TextReader) -> None:
        """Record the hashes of the files of ``reader``, once their tokens are stored."""
        if self._is_secret or (files := self._identify(reader.source)) is None:
            return
        path, key = self._path_of(reader, files), cache_key(reader)
        known = _read(path)
        entry = {"dataset": self.name_of(reader), "contents": [file.content for file in files.files]}
        if known.get(key) == entry:
            return
        known.pop(key, None)
        known[key] = entry
        entries = {place: sealed(each) for place, each in list(known.items())[-_MOST:]}
        with suppress(OSError):  # the next run hashes the files again
            self._folder.mkdir(exist_ok=True)
            replace_file(path, json.dumps(entries).encode(), is_shared=True)

    def _find(self, reader: TextReader, key: str) -> str:
        files = None if self._is_secret else reader.source.files()
        known = {} if files is None else _read(self._path_of(reader, files))
        if files is None or not known:
            return key
        if key in known and len(known[key]["contents"]) == len(files.files):
            known_files = [
                replace(file, content=content)
                for file, content in zip(files.files, known[key]["contents"], strict=True)
            ]
            reader.source.identify(replace(files, files=known_files))  # no file is read, as none was written to
            return str(known[key]["dataset"])
        identified = self._identify(reader.source)
        contents = None if identified is None else [file.content for file in identified.files]
        return next((str(entry["dataset"]) for entry in known.values() if entry["contents"] == contents), key)

    def _identify(self, source: DataSource) -> DataFiles | None:
        if (files := source.files()) is not None and files.num_unknown_bytes:
            self._show(hashing_phase(files.num_unknown_bytes))
        return source.identify()

    def _path_of(self, reader: TextReader, files: DataFiles) -> Path:
        made_with = [files.shape, *reader.fingerprints[1:]]
        return self._folder / f"{blake2b(json.dumps(made_with).encode(), digest_size=16).hexdigest()}.json"


def datasets_in(folder: Path, cache: CacheSettings, show: ShowPhase = show_nothing) -> Datasets:
    """Return the datasets of the token cache in ``folder``, whose settings are ``cache``."""
    return Datasets(folder, is_secret=cache.encryption is not None, show=show)


def _read(path: Path) -> dict[str, Any]:
    try:
        known = parse_json(read_regular(path))
        return {key: unsealed(entry) for key, entry in known.items() if _is_entry(entry)}
    except (OSError, ValueError, AttributeError):
        return {}


def _is_entry(entry: Any) -> bool:
    """Return whether ``entry`` has the form that ``Datasets.keep`` writes."""
    is_whole = isinstance(entry, dict) and {"dataset", "contents"} <= entry.keys()
    return is_whole and isinstance(entry["contents"], list) and all(isinstance(each, str) for each in entry["contents"])


def cache_key(reader: TextReader) -> str:
    """Return the key of the tokens of a source, which depends on its text, the tokenizer and the transforms."""
    return blake2b(json.dumps([_CACHING, *reader.fingerprints]).encode(), digest_size=16).hexdigest()
