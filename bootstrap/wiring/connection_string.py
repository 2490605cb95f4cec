"""Connection strings of databases, which may stand in environment variables."""

from __future__ import annotations

import os

from holdfast.domain.errors import ConfigurationError


def connection_string(dsn: str, setting: str) -> str:
    """Return ``dsn``, or the content of the environment variable that it names as ``env:NAME``.

    Raises ``ConfigurationError`` if the variable is not set; ``setting`` is the place of ``dsn`` in the settings.
    """
    kind, _, name = dsn.partition(":")
    if kind != "env":
        return dsn
    if not (found := os.environ.get(name)):
        msg = f"{setting} names the environment variable {name}, which is not set: set it to the connection string"
        raise ConfigurationError(msg)
    return found
