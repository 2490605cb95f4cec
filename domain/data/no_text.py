"""Messages about data that hold no usable text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def no_text(names: Sequence[str]) -> str:
    """Return the message that the files with these ``names`` contain no text to train on."""
    if len(names) == 1:
        return f"{names[0]} holds no text to use: check data.path"
    return f"none of the {len(names)} files, the first being {names[0]}, holds any text to use: check data.path"


def all_dropped(length: int) -> str:
    """Return the message that packing dropped every document, since none fits into a row of ``length`` tokens."""
    return (
        f"every document has more than {length:,} tokens, and data.packing.overflow=drop leaves such documents out: "
        "raise data.sequence_length, or set data.packing.overflow=split"
    )
