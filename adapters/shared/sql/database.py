"""The operations that adapters need of a SQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray


class Database(Protocol):
    """A SQL database with the tables of one ``SqlSchema``; its errors are ``StateError``."""

    locking: str
    """The end of a query that locks its rows until the end of the transaction."""

    def transaction(self) -> AbstractContextManager[None]:
        """Connect if need be, and make the statements within it as a whole or not at all."""
        ...

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of ``query``, in which question marks stand for ``values``."""
        ...

    def many(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        """Execute ``statement`` once for each of ``values``."""
        ...

    def load(self, table: str, columns: Mapping[str, NDArray[np.int64]]) -> None:
        """Add rows to ``table``: one int64 array for each column."""
        ...

    def merge(self, table: str, key: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows to ``table``, one int64 or float64 array for each column, in place of those with the same ``key``.

        No two of the rows have the same key.
        """
        ...

    def close(self) -> None:
        """Close the connection; a later transaction opens it again."""
        ...
