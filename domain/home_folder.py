"""Paths that begin with ``~``, the home folder of a user."""

from __future__ import annotations

from pathlib import Path

from holdfast.domain.errors import ConfigurationError


def expanded(path: Path | str) -> Path:
    """Return ``path`` with the home folder in place of a leading ``~`` or ``~user``.

    Raises ``ConfigurationError`` if this machine knows no such folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        msg = f"{path} begins with a home folder that this machine does not know: name the whole path"
        raise ConfigurationError(msg) from error
