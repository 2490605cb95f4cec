"""Texts without the characters that a database cannot store: NUL and lone surrogates."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def storable(text: str) -> str:
    """Return ``text`` with U+FFFD in place of NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable_json(details: Mapping[str, object]) -> str:
    """Return ``details`` as JSON with U+FFFD in place of NUL and lone surrogates; raises ``ValueError`` for NaN."""
    text = json.dumps(details, allow_nan=False, ensure_ascii=False)
    return storable(text).replace("\\u0000", "\\ufffd")


def storable_name(name: str) -> str:
    r"""Return ``name`` with ``\uXXXX`` for NUL and lone surrogates, and two for one backslash: names stay different."""
    if name.isascii() and "\\" not in name and "\0" not in name:
        return name
    escaped = name.replace("\\", "\\\\")
    return "".join(f"\\u{ord(sign):04x}" if sign == "\0" or "\ud800" <= sign <= "\udfff" else sign for sign in escaped)
