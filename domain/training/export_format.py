"""The formats in which a trained model can be exported, and the sparsity that its weights can be given."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self, final

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ExportKind(StrEnum):
    """A family of files; members are called as in ``--format``."""

    HUGGINGFACE = "huggingface"
    GGUF = "gguf"
    TORCHAO = "torchao"


_WEIGHTS: Mapping[ExportKind, Sequence[str | None]] = {
    ExportKind.HUGGINGFACE: (None, "bf16", "f16"),
    ExportKind.GGUF: ("f16", "bf16", "q8_0", "q4_0"),
    ExportKind.TORCHAO: ("int8", "int4", "fp8"),
}


@final
@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A family of files, and the type of the weights in them; None keeps the type in which they were trained."""

    kind: ExportKind = ExportKind.HUGGINGFACE
    weights: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the format called ``text``; raises ``ConfigurationError`` with all names if there is none."""
        kind, _, weights = text.partition(":")
        if text not in FORMATS:
            msg = f"there is no format {text}: choose one of {', '.join(FORMATS)}"
            raise ConfigurationError(msg)
        return cls(ExportKind(kind), weights or None)

    def __str__(self) -> str:
        """Return the name that ``parse`` accepts."""
        return str(self.kind) if self.weights is None else f"{self.kind}:{self.weights}"


FORMATS = tuple(str(ExportFormat(kind, each)) for kind, weights in _WEIGHTS.items() for each in weights)
"""The names of all formats."""


@final
@dataclass(frozen=True, slots=True)
class Sparsity:
    """The ``share`` of the weights of each linear layer that is set to zero, those of least magnitude.

    ``group`` is None, or the number of successive inputs of an output of which this share is set to zero.
    """

    share: float
    group: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the sparsity ``text``: 2:4, or a share between 0 and 1; raises ``ConfigurationError`` otherwise."""
        if text == "2:4":
            return cls(0.5, 4)
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            msg = f"the sparsity is {text}: make it 2:4, or a share between 0 and 1 such as 0.5"
            raise ConfigurationError(msg)
        return cls(share)

    def __str__(self) -> str:
        """Return the text that ``parse`` accepts."""
        return f"{self.share:g}" if self.group is None else "2:4"
