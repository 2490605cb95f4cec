"""Token ids with random access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TokenIds(Protocol):
    """A flat row of uint16 or uint32 ids: an array, a memory map, or what reads and decrypts a slice when asked."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the ids."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[Any]: ...
