"""Token ids with random access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TokenIds(Protocol):
    """Flat uint16 or uint32 ids: an array, or a view that reads, compares or decrypts each slice on access."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the ids: uint16 or uint32."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[Any]: ...
