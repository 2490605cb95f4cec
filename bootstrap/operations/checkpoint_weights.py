"""The choice between the two sets of weights of a checkpoint: those that were trained, and their average."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.adapters.shared.tensor_state.file_names import AVERAGE_FILE, MODEL_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.bootstrap.operations.named_checkpoint import Choice
    from holdfast.ports.state_store import OpenFile, StateFile


def uses_average(folder: Path, choice: Choice) -> bool:
    """Return whether ``choice`` means the average of the weights: it is in the checkpoint, and is not left out."""
    return not choice.trained and (folder / AVERAGE_FILE).exists()


def opening_weights(folder: Path, open_file: OpenFile, choice: Choice) -> OpenFile:
    """Return a function that opens the files of a checkpoint, the average in place of the weights if ``choice`` is it.

    Files are opened by ``open_file``.
    """
    if not uses_average(folder, choice):
        return open_file

    @contextmanager
    def opened(path: Path) -> Iterator[StateFile]:
        with open_file(path.with_name(AVERAGE_FILE) if path.name == MODEL_FILE else path) as file:
            yield file

    return opened
