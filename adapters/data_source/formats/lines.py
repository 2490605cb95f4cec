"""Splits streams of bytes into lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import io

    from holdfast.adapters.data_source.formats.records import Part

_PIECE_BYTES = 1 << 16


def to_line(stream: io.BufferedReader, part: Part) -> int:
    """Move ``stream`` to the first line that begins in ``part``, and return its position."""
    if part.start == 0:
        return 0
    stream.seek(part.start - 1)
    return part.start - 1 + skip_line(stream, part.limit - part.start + 1)


def skip_line(stream: io.BufferedReader, limit: float) -> int:
    """Skip the rest of a line, or at least ``limit`` bytes of it; return the number of bytes skipped."""
    skipped = 0
    while skipped < limit and (piece := stream.readline(_PIECE_BYTES)):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped
