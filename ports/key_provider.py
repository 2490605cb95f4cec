"""Who holds the keys under which data keys are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key as it may be stored: encrypted by the key that ``key_id`` names, which stays with its provider."""

    key_id: str
    data: bytes = field(repr=False)


class KeyProvider(ABC):
    """Encrypts data keys under a key that never leaves it.

    - ``unwrap`` returns what ``wrap`` was given, in any process whose provider has the same key.
    - The ``context`` says what the data key is for. It is not kept: under another one the key cannot be unwrapped.
    - Data keys and contexts are bytes of any number, none included.
    - A key that was written with before still reads, as long as the provider is given it behind the one to write with.
    - ``unwrap`` raises ``StateError`` for a wrapped key that was changed, is of another context, or was wrapped by a
      key that is not at hand; it names that key by its id.
    - A provider whose key is missing or is none raises ``ConfigurationError`` when it is made.
    - No bytes of a key stand in a ``repr`` or a message.
    - Usable from several threads at once.
    """

    @abstractmethod
    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        """Return ``data_key`` encrypted for ``context``; other bytes each time."""

    @abstractmethod
    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """Return the data key."""
