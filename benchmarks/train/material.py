"""What is trained on: the Python standard library, as it is and as documents that each fill a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.bootstrap.stages.alone import choose_alone
from holdfast.bootstrap.stages.identify.stage import find_data, identify
from holdfast.configs.settings_layers import load_settings
from holdfast.ports.data_source import Document

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@final
@dataclass(frozen=True, slots=True)
class Material:
    """Overrides that make a run read the material below ``folder``."""

    folder: Path
    vocabulary: int
    length: int

    @property
    def tokenizer(self) -> tuple[str, ...]:
        """Return what names the tokenizer."""
        return "tokenizer.kind=huggingface", f"tokenizer.path={self.folder / 'tokenizer.json'}"

    @property
    def full_rows(self) -> tuple[str, ...]:
        """Return the overrides for documents of exactly a row."""
        return (
            *self.tokenizer,
            *self._shared,
            "data.kind=tokens",
            f"data.path={self.folder / 'rows.npy'}",
        )

    @property
    def documents(self) -> tuple[str, ...]:
        """Return the overrides for the library's files."""
        return *self.tokenizer, *self._shared, "data.kind=python_library"

    @property
    def _shared(self) -> tuple[str, ...]:
        return f"run.cache_dir={self.folder}", f"data.sequence_length={self.length}", "data.holdout=0"


def prepare(folder: Path, *, vocabulary: int, length: int, rows: int) -> Material:
    """Write a tokenizer trained on 4 MiB of the library, and ``rows`` documents of ``length`` tokens of it."""
    overrides = [
        f"run.dir={folder / 'run'}",
        f"run.cache_dir={folder}",
        "tokenizer.kind=train",
        f"tokenizer.vocabulary_size={vocabulary}",
        f"tokenizer.max_bytes={4 << 20}",
    ]
    settings = load_settings([], overrides, {}).settings
    found = find_data(choose_alone(settings).request)
    tokenizer, source = identify(found, found.data).tokenizer, found.data.source
    tokenizer.write(folder)
    taken: list[NDArray[np.int64]] = []
    wanted = rows * (length - 1)
    for unit in source.units():
        for part in source.read(unit):
            if isinstance(part, Document) and sum(map(len, taken)) < wanted:
                taken.append(np.asarray(tokenizer.encode([part.text]).ids, np.int64))
    tokens = np.concatenate(taken)
    text = np.resize(tokens[tokens != tokenizer.end_of_text], (rows, length - 1))
    ends = np.full((rows, 1), tokenizer.end_of_text)
    np.save(folder / "rows.npy", np.concatenate([text, ends], axis=1).astype(np.uint32).ravel())
    return Material(folder, vocabulary, length)
