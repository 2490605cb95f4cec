"""Notation of sizes and counts: reads ``1GiB``, ``20M``, ``2e7`` and ``1_000``, and writes ``6.4 GiB``."""

from __future__ import annotations

import re
from decimal import Decimal
from types import MappingProxyType

UNITS = MappingProxyType(
    {
        **{unit: 1000**power for power, unit in enumerate("KMGT", 1)},
        **{f"{unit}B": 1000**power for power, unit in enumerate("KMGT", 1)},
        **{f"{unit}iB": 1024**power for power, unit in enumerate("KMGT", 1)},
    }
)
_BY_NAME = {name.lower(): factor for name, factor in UNITS.items()}
_LARGEST = 2**63 - 1
_NUMBER = r"[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+]?[0-9]{1,2})?"
_SIZE = re.compile(rf"({_NUMBER}) ?({'|'.join(UNITS)})?", re.IGNORECASE)


def size_in_bytes(text: str) -> int:
    """Return a size such as 6GiB, 1.5GB or 2e9 as a whole number, rounded down.

    K, M, G and T, with or without B, count in thousands, KiB, MiB, GiB and TiB in 1,024; small letters mean the same.
    Raises ``ValueError`` for text that is not a size, and for a size below 1 or above 2^63 - 1.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(Decimal(match[1].replace("_", "")) * _BY_NAME.get((match[2] or "").lower(), 1)) if match else 0
    if not 1 <= size <= _LARGEST:
        msg = f"{text} is not a size: write a number such as 2e9, or one with a unit such as 20M, 1.5GB or 6GiB"
        raise ValueError(msg)
    return size


def shown_size(num_bytes: float | None) -> str:
    """Return ``num_bytes`` for a person, in B, KiB, MiB, GiB or TiB, "-" for None; all sizes that are shown are its."""
    if num_bytes is None:
        return "-"
    if not num_bytes >= 1023.5:  # NaN too
        return f"{num_bytes:.0f} B"
    size = num_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1023.95:
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``number`` with its ``noun`` or the ``plural``, which by default ends with an s: 1 step, 2 steps."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
