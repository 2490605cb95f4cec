"""Hides passwords, keys and signatures in URLs, and recognizes the addresses of this machine."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

# Many an S3 secret holds unescaped slashes, so all up to the last @ is hidden, unless the colon is that of a port.
_USER = re.compile(r"://(?:[^/?#@:]*:(?![0-9]*/).*|[^/?#]*)@", re.DOTALL)
_PARAMETER = re.compile(r"[?&;#]([^=&;?#\s]+)=")
_SECRET_PARAMETER = re.compile(r"sig|token|key|secret|credential|password", re.IGNORECASE)
_END_IN_TEXT = re.compile(r"[&\s'\")]")


def without_secrets(text: str) -> str:
    """Return ``text``, a URL or a sentence with URLs, without the passwords, keys and signatures in them."""
    return hide_parameters(
        hide_user(text, "***@"), "***", lambda name: bool(_SECRET_PARAMETER.search(name)), end=_END_IN_TEXT
    )


def describe(error: Exception) -> str:
    """Return the cause of ``error`` without secrets, for the middle of a sentence."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(without_secrets(text).split())


def hide_user(text: str, replacement: str) -> str:
    """Return ``text`` with ``replacement`` in place of the user part of a URL, its @ included."""
    # The text after the last @ is cut off first, which keeps the search linear.
    before, at, after = text.rpartition("@")
    return _USER.sub(lambda _: f"://{replacement}", before + at) + after


def hide_parameters(text: str, mask: str, is_secret: Callable[[str], bool], *, end: re.Pattern[str]) -> str:
    """Return ``text`` with ``mask`` in place of the parameters of URLs whose names are secret.

    A value extends to the next match of ``end``.
    """
    parts = []
    start = 0
    for match in _PARAMETER.finditer(text):
        if match.start() >= start and is_secret(unquote(match[1])):
            stop = end.search(text, match.end())
            parts += [text[start : match.end()], mask]
            start = stop.start() if stop else len(text)
    return "".join([*parts, text[start:]])


def is_loopback(host: str) -> bool:
    """Return whether the name or address ``host`` is that of this machine for its own programs alone."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def expanded(path: Path | str) -> Path:
    """Return ``path`` with the home folder in place of a leading ``~`` or ``~user``.

    Raises ``ConfigurationError`` if this machine knows no such folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        msg = f"{path} begins with a home folder that this machine does not know: name the whole path"
        raise ConfigurationError(msg) from error
