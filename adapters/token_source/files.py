"""Files of token ids made by other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, final

from typing_extensions import override

from holdfast.adapters.shared.token_store.derived_arrays import DerivedArrayStore
from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations, safe_name, storing
from holdfast.adapters.shared.token_store.lru_cache import LruCache
from holdfast.adapters.shared.token_store.token_folder import TokenFolder
from holdfast.adapters.token_source.binary_files import binary_shards
from holdfast.adapters.token_source.cached_shards import cached_shards, is_token_cache
from holdfast.adapters.token_source.columnar_files import columnar_shards, columns_used
from holdfast.adapters.token_source.discovery import find_files
from holdfast.adapters.token_source.raw_ids import raw_form
from holdfast.adapters.token_source.shards import ReadOptions, fingerprint_of
from holdfast.domain.data.data_files import DataFile, DataFiles
from holdfast.domain.errors import DataError
from holdfast.ports.basic import BasicTokenSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays
    from holdfast.adapters.token_source.shards import FileShard, TokenFile
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
        found: dict[tuple[int, str], list[TokenShard]] = {}
        places = dict(enumerate(self._paths))
        for name, piece in self._found().items():
            number = self._numbers[name]
            found.setdefault((number, piece.file.removeprefix(piece.place)), []).append(piece.shard)
            places[number] = piece.place
        files = [
            DataFile(
                below.lstrip("/") if len(places) == 1 else f"data.path[{number}]{below}",
                sum(shard.num_tokens for shard in shards),
                "tokens",
                "known",
                fingerprint_of([shard.fingerprint for shard in shards]),
            )
            for (number, below), shards in found.items()
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
                found = {piece.shard.name: (number, piece) for number, piece in numbered}
                self._pieces = {
                    name: piece for name, (_, piece) in sorted(found.items(), key=lambda entry: self._rank(*entry[1]))
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
            self._folder.make_folder(place)
        return place
