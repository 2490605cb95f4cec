"""One file of the newest checkpoint of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.adapters.shared.tensor_state.file_parts import read_whole
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.ports.state_store import Loaded, OpenFile, StateStore


def recall(store: StateStore, name: str) -> tuple[Loaded, bytes | None]:
    """Return the newest checkpoint of ``store``, and the file ``name`` of it as it was saved, None without one.

    Raises ``StateError`` if it holds no such file.
    """
    found: list[bytes] = []

    def take(folder: Path, open_file: OpenFile) -> None:
        found.clear()
        try:
            found.append(read_whole(folder / name, open_file))
        except OSError as error:
            msg = f"{folder} holds no {name}, without which nobody can tell what it is of: {error.strerror}"
            raise StateError(msg) from error

    loaded = store.restore(take)
    return loaded, found[0] if loaded.info is not None else None
