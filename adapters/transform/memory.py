"""A transform made of a function of the host program."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.ports.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class MemoryTransform(Transform):
    """Calls ``function``, which must fulfil the port's contract; ``fingerprint`` must change with its behaviour."""

    def __init__(self, function: Callable[[str], str | None], fingerprint: str) -> None:
        self._function = function
        self._fingerprint = fingerprint

    @override
    def __call__(self, text: str) -> str | None:
        return self._function(text)

    @override
    def fingerprint(self) -> str:
        return self._fingerprint
