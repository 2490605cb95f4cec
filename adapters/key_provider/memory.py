"""Keys that the host holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.key_provider.key_ring import KeyRing
from holdfast.ports.key_provider import KeyProvider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.ports.key_provider import WrappedKey


@final
class MemoryKeyProvider(KeyProvider):
    """Wraps by ``key``, 32 random bytes, and unwraps by it and the ``old`` ones."""

    def __init__(self, key: bytes, *, old: Sequence[bytes] = ()) -> None:
        self._ring = KeyRing([key, *old])

    @override
    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        return self._ring.wrap(data_key, context)

    @override
    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        return self._ring.unwrap(wrapped, context)
