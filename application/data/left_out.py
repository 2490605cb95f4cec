"""Documents that are left out of a source by their position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from holdfast.ports.data_source import Unit
    from holdfast.ports.transform import Dropped


class LeftOut(Protocol):
    """Documents that are left out by their position in the source, such as duplicates."""

    def fingerprint(self) -> str:
        """Return a short text that identifies which documents are left out."""
        ...

    def mask(self, unit: Unit, positions: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether the document at each of ``positions`` in ``unit`` is left out, bool (positions,)."""
        ...

    def verdict(self, unit: Unit, position: int) -> Dropped:
        """Return the reason why the document at ``position`` is left out."""
        ...


@final
class LeftOutByAny:
    """The documents that any of ``parts`` leaves out, for the reason of the first one."""

    def __init__(self, parts: Sequence[LeftOut]) -> None:
        self._parts = parts

    def fingerprint(self) -> str:
        """Return the fingerprints of the parts."""
        return " ".join(part.fingerprint() for part in self._parts)

    def mask(self, unit: Unit, positions: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether the document at each of ``positions`` in ``unit`` is left out, bool (positions,)."""
        masks = [part.mask(unit, positions) for part in self._parts]
        found: NDArray[np.bool_] = np.logical_or.reduce(masks)
        return found

    def verdict(self, unit: Unit, position: int) -> Dropped:
        """Return the reason why the document at ``position`` is left out."""
        return next(part.verdict(unit, position) for part in self._parts if part.mask(unit, [position])[0])
