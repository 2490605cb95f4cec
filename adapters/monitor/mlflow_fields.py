"""Names, parameters and tags as MLflow accepts them."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST_PARAMETER = 6000
LONGEST_TAG = 5000
_LONGEST_NAME = 250
_CUT = " ... (cut)"
_OTHER = re.compile(r"[^A-Za-z0-9_\-. /]")
_OF_PATHS = re.compile(r"[./]")
_ESCAPED = re.compile(r":([0-9a-f]+):")
_EMPTY = "::"


def encoded(name: str) -> str:
    """Return ``name`` with the characters that MLflow refuses as ``:hex:``; a colon is ``:3a:``.

    Dots and slashes are kept if ``name`` is a normal relative path, as MLflow demands. The result of a name that is too
    long for MLflow ends with a hash of the name.
    """
    if not name:
        return _EMPTY
    found = _OTHER.sub(_escape, name)
    if posixpath.normpath(found) != found or found.startswith((".", "/")):
        found = _OF_PATHS.sub(_escape, found)
    if len(found) > _LONGEST_NAME:
        found = f"{found[:180]}:long:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    return found


def decoded(name: str) -> str:
    """Return the name that ``encoded`` made ``name`` of, unless it was too long."""
    return "" if name == _EMPTY else _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def is_cut(name: str) -> bool:
    """Return whether ``encoded`` could not keep all of a name."""
    return ":long:" in name


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return nested plain data as texts, each with the names on the way to it joined by dots."""
    return {encoded(".".join(names)): text for names, text in _leaves(settings, ())}


def cut(text: str, longest: int) -> str:
    """Return ``text`` with at most ``longest`` characters, and a note if it was longer."""
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT


def _escape(match: re.Match[str]) -> str:
    return f":{ord(match[0]):x}:"


def _leaves(value: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, item in items:
        yield from _leaves(item, (*names, str(key)))
    if not items:
        yield names, value if isinstance(value, str) else json.dumps(value, default=str)
