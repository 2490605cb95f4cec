"""The formats and compressions by suffixes of file names."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.adapters.data_source.formats.compression import Compression

Format = Literal["txt", "jsonl", "json", "csv", "tsv", "parquet", "arrow"]

_ADDED_LATER = (".json", ".bz2", ".xz")  # runs that began before do not read files with these suffixes

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
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
_COMPRESSIONS: Mapping[str, Compression] = {".gz": "gz", ".zst": "zst", ".zstd": "zst", ".bz2": "bz2", ".xz": "xz"}
_REMEDIES: Mapping[str, str] = {
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "is an archive of several files: unpack it"),
    **dict.fromkeys(
        (".docx", ".doc", ".odt", ".rtf", ".pdf", ".pptx", ".xlsx", ".epub"),
        "is a document with a layout, not plain text: convert it to text",
    ),
}


def problem_with_suffix(path: str) -> str:
    """Return, as a clause, why ``path``, whose format is unknown, is not read and what to do."""
    suffixes = PurePosixPath(path.lower()).suffixes[-2:]
    found = next((_REMEDIES[suffix] for suffix in suffixes if suffix in _REMEDIES), None)
    return found or "has a suffix that does not identify its format: set data.format, say to jsonl"


def format_of(path: str) -> Format | None:
    """Return the format by the suffix of ``path``, ignoring one of a compression."""
    name = PurePosixPath(path.lower())
    return _FORMATS.get(PurePosixPath(name.stem if name.suffix in _COMPRESSIONS else name.name).suffix)


def compression_of(path: str) -> Compression:
    """Return the compression by the suffix of ``path``."""
    return _COMPRESSIONS.get(PurePosixPath(path.lower()).suffix, "none")


def is_known_of_old(path: str) -> bool:
    """Return whether the first rules for folders know the suffixes of ``path``."""
    return not any(suffix in _ADDED_LATER for suffix in PurePosixPath(path.lower()).suffixes[-2:])
