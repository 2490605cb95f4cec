"""Values that all kinds of token files share: read options, and the shards made of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.ports.token_source import Tokens, TokenShard

    TokensOpener = Callable[[], Tokens]


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A local file; ``name`` is what a person calls it, ``etag`` and, of the local copy, ``stamp`` change with it.

    ``place`` is where the path that led to it begins: a folder, that of a glob, or the file itself.
    """

    name: str
    path: Path
    etag: str
    stamp: str
    place: str


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read: what ends a document, which ids there are, their type in raw files, and what a shard is."""

    end_of_text: int
    vocabulary_size: int
    dtype: str
    column: str
    shard_tokens: int

    def to_key(self) -> str:
        """Return the text that names folders of conversions; it must never change, or conversions are made again."""
        return (
            f"Reading(end_of_text={self.end_of_text!r}, vocabulary_size={self.vocabulary_size!r}, "
            f"dtype={self.dtype!r}, column={self.column!r}, shard_tokens={self.shard_tokens!r})"
        )


@dataclass(frozen=True, slots=True)
class FileShard:
    """A shard and how to open it; ``file`` is what it is a part of, and ``place`` where the path to that begins."""

    shard: TokenShard
    open: TokensOpener
    file: str
    place: str


def stamp_of(path: Path) -> str:
    """Return what changes when the file is written to."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def shard_name(file: TokenFile, number: int) -> str:
    """Return the name of a file's shard; those of one file sort by number."""
    return f"{file.name}#{number:06d}"


def fingerprint_of(*parts: object) -> str:
    """Return a hash of ``parts``."""
    return blake3(repr(parts).encode("utf-8", "surrogatepass")).hexdigest(length=16)
