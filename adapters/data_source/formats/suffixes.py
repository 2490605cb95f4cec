"""The formats and compressions by suffixes of file names."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.adapters.data_source.formats.compression import Compression

Format = Literal["txt", "jsonl", "csv", "tsv", "parquet", "arrow"]

_PLAIN_TEXT = (
    *("txt", "text", "md", "markdown", "rst", "adoc", "org", "tex", "log"),
    *("py", "pyi", "ipy", "js", "mjs", "ts", "jsx", "tsx", "java", "kt", "scala", "go", "rs", "rb", "php", "pl"),
    *("c", "h", "cc", "cpp", "cxx", "hh", "hpp", "cu", "cuh", "cs", "swift", "m", "mm", "r", "jl", "lua", "hs", "ml"),
    *("sh", "bash", "zsh", "ps1", "sql", "html", "htm", "css", "scss", "xml", "yaml", "yml", "toml", "ini", "cfg"),
)
_FORMATS: Mapping[str, Format] = {
    **{f".{suffix}": "txt" for suffix in _PLAIN_TEXT},
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
_COMPRESSIONS: Mapping[str, Compression] = {".gz": "gz", ".zst": "zst", ".zstd": "zst"}


def format_of(path: str) -> Format | None:
    """Return the format by the suffix of ``path``, ignoring one of a compression."""
    name = PurePosixPath(path.lower())
    return _FORMATS.get(PurePosixPath(name.stem if name.suffix in _COMPRESSIONS else name.name).suffix)


def compression_of(path: str) -> Compression:
    """Return the compression by the suffix of ``path``."""
    return _COMPRESSIONS.get(PurePosixPath(path.lower()).suffix, "none")
