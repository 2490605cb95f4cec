"""MD5 checksums as object stores report them, computed from the file that was uploaded.

They detect damage during the transfer, but no forgery; if a store reports no matching checksum, the bytes are compared.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from typing import TYPE_CHECKING, Any

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations

_PART = 32 << 20
_MOST_PARTS = 10_000
_PIECE = 1 << 20
_TAG = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")


def part_bytes(size: int) -> int:
    """Return the part size in bytes of a multipart upload to S3 of a file of ``size`` bytes."""
    return max(_PART, math.ceil(size / _MOST_PARTS / _PIECE) * _PIECE)


def tag_of(info: Mapping[str, Any]) -> str | None:
    """Return the MD5 tag in a store's listing of an object, None if it has no known form."""
    if md5 := info.get("md5Hash"):  # Google
        return base64.b64decode(md5).hex()
    tag = str(info.get("ETag", "")).strip('"')
    return tag if _TAG.fullmatch(tag) else None


def fingerprint(files: FileOperations, path: Path, tag: str) -> tuple[str, str]:
    """Return the hash of the file in the manifest's form, and its tag for an upload of the kind of ``tag``.

    Both describe the same bytes, as the file is read once.
    """
    size, is_in_parts = path.stat().st_size, "-" in tag
    limit = part_bytes(size) if is_in_parts else max(1, size)
    hasher, parts, position = blake3(max_threads=blake3.AUTO), [_md5()], 0
    with io.BufferedReader(files.open_file(path), _PIECE) as file:
        while piece := file.read(_PIECE):
            if position and position % limit == 0:
                parts.append(_md5())
            parts[-1].update(piece)
            hasher.update(piece)
            position += len(piece)
    of_parts = f"{_md5(b''.join(part.digest() for part in parts)).hexdigest()}-{len(parts)}"
    return f"blake3:{hasher.hexdigest()}", of_parts if is_in_parts else parts[0].hexdigest()


def _md5(data: bytes = b"") -> Any:
    return hashlib.md5(data, usedforsecurity=False)
