"""Keys in variables of the environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.key_provider.key_ring import KeyRing, key_from_base64
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.key_provider import KeyProvider

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.ports.key_provider import WrappedKey


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@final
class EnvironmentKeyProvider(KeyProvider):
    """Wraps by the key in the ``variable`` of ``environment``; unwraps by this key and those in ``old`` variables.

    A variable holds base64 of 32 bytes. It is read once.
    """

    def __init__(self, environment: Mapping[str, str], variable: str, *, old: Sequence[str] = ()) -> None:
        self._ring = KeyRing([_key_in(environment, name) for name in (variable, *old)])

    @override
    def wrap(self, data_key: bytes, context: bytes) -> WrappedKey:
        return self._ring.wrap(data_key, context)

    @override
    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        return self._ring.unwrap(wrapped, context)


def _key_in(environment: Mapping[str, str], name: str) -> bytes:
    if not _NAME.fullmatch(name):
        msg = "the name of a variable has letters, digits and _ only; the given value is not shown, as it may be a key"
        raise ConfigurationError(msg)
    text = environment.get(name, "")
    if not text.strip():
        msg = f"the environment variable {name} is not set or empty: it must hold the key, base64 of 32 bytes"
        raise ConfigurationError(msg)
    return key_from_base64(text, f"the environment variable {name}")
