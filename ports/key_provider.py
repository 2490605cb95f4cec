"""The port for encryption keys, which wrap data keys and stay with their provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key in the form that may be stored: encrypted by the key ``key_id``, which stays with its provider."""

    key_id: str
    data: bytes = field(repr=False)


class KeyProvider(ABC):
    """Encrypts data keys under a key that never leaves it.

    - ``unwrap`` returns the data key that was passed to ``wrap``, in any process whose provider has the same key.
    - The ``context`` says what the data key is for. It is not stored; with a different one the key cannot be unwrapped.
    - Data keys and contexts are bytes of any length, including zero.
    - A provider can be given earlier keys besides the current one; they are used to unwrap, never to wrap.
    - ``unwrap`` raises ``StateError`` for a wrapped key that was changed, has a different context, or was wrapped by an
      unknown key; it names that key by its id.
    - A provider with a missing or invalid key raises ``ConfigurationError`` when it is created.
    - No bytes of a key appear in a ``repr`` or a message.
    - Usable from several threads at once.
    """

    @abstractmethod
    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        """Return ``data_key`` encrypted for ``context``; the bytes differ each time."""

    @abstractmethod
    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """Return the data key."""
