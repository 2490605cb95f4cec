"""Wraps data keys with keys held as bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from typing import TYPE_CHECKING, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.adapters.shared.encryption.streaming_aead import KEY_SIZE, AuthenticationError
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.key_provider import WrappedKey

if TYPE_CHECKING:
    from collections.abc import Sequence

_NONCE_SIZE = 12
_ID_SIZE = 8
_HOW_TO_MAKE = "make one with `openssl rand -base64 32`"


@final
class KeyRing:
    """Wraps by the first of ``keys``, each of 32 bytes, and unwraps by any of them: AES-256-GCM.

    The stored form is nonce (12 bytes) | encrypted data key | tag (16); key id and context are authenticated with it.
    The id is the beginning of the key's SHA-256, which reveals nothing about a random key.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        ids = [_id_of(key) for key in keys]
        self._ciphers = dict(zip(ids, map(AESGCM, keys), strict=True))
        self._first = ids[0]

    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        """Wrap a data key as ``KeyProvider.wrap`` promises."""
        nonce = secrets.token_bytes(_NONCE_SIZE)
        encrypted = self._ciphers[self._first].encrypt(nonce, data_key, _authenticated(self._first, context))
        return WrappedKey(self._first, nonce + encrypted)

    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """Unwrap a data key as ``KeyProvider.unwrap`` promises.

        Raises ``StateError`` for a key that is not among ``keys``, ``AuthenticationError`` if the data key was changed.
        """
        cipher = self._ciphers.get(wrapped.key_id)
        if cipher is None:
            msg = (
                f"the data key was wrapped by the key {wrapped.key_id[:64]!r}, but only "
                f"{', '.join(self._ciphers)} can be used: add that key as an old one"
            )
            raise StateError(msg)
        nonce, encrypted = wrapped.data[:_NONCE_SIZE], wrapped.data[_NONCE_SIZE:]
        try:
            return cipher.decrypt(nonce, encrypted, _authenticated(wrapped.key_id, context))
        except (InvalidTag, ValueError) as error:  # a truncated nonce is a ValueError
            msg = (
                f"the data key that the key {wrapped.key_id} wrapped cannot be authenticated: it was changed or "
                "moved; use another copy"
            )
            raise AuthenticationError(msg) from error


def key_from_base64(text: str, place: str) -> bytes:
    """Return the key that ``text`` holds as base64.

    Raises ``ConfigurationError`` about ``place`` if it holds no key of the right size.
    """
    try:
        key = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        msg = f"{place} does not hold base64: {_HOW_TO_MAKE}"
        raise ConfigurationError(msg) from None
    if len(key) != KEY_SIZE:
        msg = f"{place} holds base64 of {len(key)} bytes where a key has {KEY_SIZE}: {_HOW_TO_MAKE}"
        raise ConfigurationError(msg)
    return key


def _id_of(key: bytes) -> str:
    return hashlib.sha256(key).digest()[:_ID_SIZE].hex()


def _authenticated(key_id: str, context: bytes) -> bytes:
    return key_id.encode("ascii") + context  # the id has one length, so that no other pair gives the same bytes
