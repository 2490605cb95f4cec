"""Values shared by all kinds of token files: read options, and the shards of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from holdfast.domain.data.data_files import LATEST_RULES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.ports.token_source import Tokens, TokenShard

    TokensOpener = Callable[[], Tokens]


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A local file; ``name`` is its name in messages; ``etag`` and the ``stamp`` of the local copy change with it.

    ``place`` is the beginning of the path in the settings: a folder, that of a glob, or the file itself.
    """

    name: str
    path: Path
    etag: str
    stamp: str
    place: str


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading: the end of a document, the vocabulary, the type of raw ids, and the size of a shard."""

    end_of_text: int
    vocabulary_size: int
    dtype: str
    column: str
    shard_tokens: int
    rules: int = LATEST_RULES

    def to_key(self) -> str:
        """Return the text that names folders of conversions; if its form changed, files would be converted again."""
        return (
            f"Reading(end_of_text={self.end_of_text!r}, vocabulary_size={self.vocabulary_size!r}, "
            f"dtype={self.dtype!r}, column={self.column!r}, shard_tokens={self.shard_tokens!r})"
        )


@dataclass(frozen=True, slots=True)
class FileShard:
    """A shard and a function that opens it; ``file`` contains it, and ``place`` is as in ``TokenFile``."""

    shard: TokenShard
    open: TokensOpener
    file: str
    place: str


def stamp_of(path: Path) -> str:
    """Return a text that changes when the file is written to."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def shard_name(file: TokenFile, number: int) -> str:
    """Return the name of a file's shard; those of one file sort by number."""
    return f"{file.name}#{number:06d}"


def fingerprint_of(*parts: object) -> str:
    """Return a hash of ``parts``."""
    return blake3(repr(parts).encode("utf-8", "surrogatepass")).hexdigest(length=16)
