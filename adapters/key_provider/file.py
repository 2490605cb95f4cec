"""Keys in files."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.key_provider.key_ring import KeyRing, key_from_base64
from holdfast.adapters.shared.encryption.streaming_aead import KEY_SIZE
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.files.regular_file import read_at
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.key_provider import KeyProvider

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.ports.key_provider import WrappedKey

_LARGEST = 4096


@final
class FileKeyProvider(KeyProvider):
    """Wraps by the key in the file ``path``; unwraps by this key and those in the ``old`` files.

    A file holds 32 bytes or base64 of them, belongs to this user, and is not accessible to other users. It is read
    once; a link is followed.
    """

    def __init__(self, path: Path, *, old: Sequence[Path] = ()) -> None:
        self._ring = KeyRing([_key_in(place) for place in (path, *old)])

    @override
    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        return self._ring.wrap(data_key, context)

    @override
    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        return self._ring.unwrap(wrapped, context)


def _key_in(path: Path) -> bytes:
    data = _private_bytes(path)
    if len(data) != KEY_SIZE:
        return key_from_base64(data.decode("latin-1"), f"the key file {path}")
    if all(32 <= byte < 127 for byte in data):  # random bytes are that once in 10^14
        msg = f"the key file {path} holds {KEY_SIZE} letters, not random bytes: use `openssl rand -out {path} 32`"
        raise ConfigurationError(msg)
    return data


def _private_bytes(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe does not block
        try:
            _check_private(path, os.fstat(descriptor))
            return read_at(descriptor, 0, _LARGEST)
        finally:
            os.close(descriptor)
    except OSError as error:
        msg = f"the key file {path} cannot be read, {explain(error)}"
        raise ConfigurationError(msg) from error


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        msg = f"the key file {path} is not a file: name a file that holds the key"
        raise ConfigurationError(msg)
    if status.st_uid != os.geteuid():
        msg = f"the key file {path} belongs to another user, who can change it: use a file of your own"
        raise ConfigurationError(msg)
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        msg = f"the key file {path} is open to others, with mode {stat.S_IMODE(status.st_mode):o}: `chmod 600 {path}`"
        raise ConfigurationError(msg)
