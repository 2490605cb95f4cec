"""The port for providers of encryption keys: a key encrypts data keys and stays with its provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key encrypted by the key ``key_id``; this form may be stored."""

    key_id: str
    data: bytes = field(repr=False)


class KeyProvider(ABC):
    """Encrypts data keys with a key that never leaves the provider.

    - ``unwrap`` returns the data key that was passed to ``wrap``, in any process whose provider has the same key.
    - The ``context`` says what the data key is for. It is not stored; the data key cannot be unwrapped with a different
      context.
    - Data keys and contexts are bytes of any length, including zero.
    - A provider can be given earlier keys besides the current key; they are used to unwrap, never to wrap.
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
        """Return the data key. Raises ``StateError`` if ``wrapped``, its key or ``context`` is not the right one."""
