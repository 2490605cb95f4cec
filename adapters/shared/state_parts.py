"""Captured pieces of state as files."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from typing_extensions import override

from domain.errors import StateError
from ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


@final
@dataclass(frozen=True, slots=True)
class TextPart(StatePart):
    """A text file."""

    name: str
    text: str

    @override
    def write(self, folder: Path) -> None:
        (folder / self.name).write_text(self.text, encoding="utf-8")


@final
@dataclass(frozen=True, slots=True)
class TensorsPart(StatePart):
    """A safetensors file of host tensors that share no memory.

    Its metadata is exactly ``{"format": "pt"}``: with two or more keys safetensors writes them in another order in
    each process, and equal states would have different bytes.
    """

    name: str
    tensors: Mapping[str, Tensor]

    @override
    def write(self, folder: Path) -> None:
        try:
            save_file(dict(self.tensors), folder / self.name, metadata={"format": "pt"})
        except SafetensorError as error:  # how its Rust side says that a disk is full
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return what a ``TensorsPart`` wrote, lazily read: copy what is to outlive the file.

    Raises ``StateError`` if the file is missing or damaged.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        msg = f"{path} cannot be read: {error}; restore another checkpoint"
        raise StateError(msg) from error
