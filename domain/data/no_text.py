"""Messages about data without usable text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_REASONS_SHOWN = 3


def no_text(names: Sequence[str], drops: Mapping[str, int] | None = None) -> str:
    """Return the message that the files with these ``names`` contain no text to train on.

    ``drops`` are the numbers of records that were left out, by reason.
    """
    fault = _fault(names)
    if not drops:
        return f"{fault}: check data.filter, if it is set, or data.path"
    frequent = sorted(drops.items(), key=lambda item: (-item[1], item[0]))[:_MOST_REASONS_SHOWN]
    reasons = ", ".join(f"{reason} ({number:,})" for reason, number in frequent)
    return f"{fault}, since records were left out, most often for {reasons}: correct these rules, or check data.path"


def none_usable(names: Sequence[str]) -> str:
    """Return the message that the files with these ``names`` contain text, but none to train a tokenizer on."""
    return (
        f"{_fault(names)} after data.holdout, data.validation and data.transforms: correct them, or check data.path; "
        "the command `data validate`, with the same settings, names the rules that leave records out"
    )


def _fault(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} holds no text to use"
    return f"none of the {len(names)} files, the first being {names[0]}, holds any text to use"


def all_dropped(length: int) -> str:
    """Return the message that packing dropped every document, since none fits into a row of ``length`` tokens."""
    return (
        f"every document has more than {length:,} tokens, and data.packing.overflow=drop leaves such documents out: "
        "raise data.sequence_length, or, with data.task=text, set data.packing.overflow=split"
    )
