"""Captured files: bytes and text as parts of a state, and parts as files of a folder."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.ports.state_store import OpenFile


@final
@dataclass(frozen=True, slots=True)
class InMemoryPart(StatePart):
    """A file of bytes."""

    name: str
    data: bytes

    @override
    def chunks(self) -> Iterator[bytes]:
        yield self.data


@final
@dataclass(frozen=True, slots=True)
class TextPart(StatePart):
    """A text file, in UTF-8."""

    name: str
    text: str

    @override
    def chunks(self) -> Iterator[bytes]:
        yield self.text.encode()


def captured(write: Callable[[Path], object]) -> Sequence[StatePart]:
    """Return the files that ``write`` creates in the folder it gets, by value."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as scratch:
        folder = Path(scratch)
        write(folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return [InMemoryPart(path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths]


@contextlib.contextmanager
def unpacked(parts: Iterable[StatePart], scratch: Path) -> Iterator[Path]:
    """Yield a folder below ``scratch`` with the parts' files, readable by this user only and deleted after the block.

    Raises ``StateError`` if there is no room for them.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-", dir=scratch)))
            write_parts(parts, folder)
        except OSError as error:
            msg = f"the captured state could not be unpacked in {scratch}, {explain(error)}"
            raise StateError(msg) from error
        yield folder


def write_parts(parts: Iterable[StatePart], folder: Path) -> None:
    """Write each part into ``folder``, which exists."""
    for part in parts:
        path = folder / part.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for chunk in part.chunks():
                file.write(chunk)


def read_whole(path: Path, open_file: OpenFile) -> bytes:
    """Return all bytes of a small file; raises ``OSError``."""
    with open_file(path) as file:
        data, size = b"", 1 << 16
        while piece := file.read(len(data), size):
            data, size = data + piece, 2 * size
        return data


MODEL_FILE = "model.safetensors"
"""The trained weights, which ``from_pretrained`` loads."""

AVERAGE_FILE = "ema.safetensors"
"""The average of the weights that ``optimizer.ema`` keeps, in the form of ``MODEL_FILE``."""
