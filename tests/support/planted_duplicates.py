"""A corpus with planted duplicates of known similarity, and a search that is killed."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.shared.minhash import MinHashSignatures
from holdfast.adapters.shared.token_store.duplicate_files import DuplicateFiles
from holdfast.application.data.deduplicate import Duplicates
from holdfast.application.data.document_keys import ExactKeys, MinHashKeys
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.domain.data.near_duplicates import choose_bands
from tests.support.encoders import BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from holdfast.application.data.document_keys import DocumentKeys

EXACT = ExactKeys(normalize=True)


def minhash(threshold: float = 0.8, seed: int = 0, bands: int | None = None) -> DocumentKeys:
    """Return the rule of documents that are nearly the same."""
    bands = bands or choose_bands(threshold, 112)
    return MinHashKeys(MinHashSignatures(112, seed), ngram=5, bands=bands, threshold=threshold, normalize=True)


def reader(units: dict[str, list[str]]) -> TextReader:
    """Return a reader of ``units``."""
    return TextReader(MemoryDataSource(units), BYTES, RejectedRecords("skip"))


def corpus(originals: int = 300, copies: int = 600, words: int = 150) -> list[str]:
    """Return random documents, and copies of them in which some of the words were replaced, 0 to 9 %."""
    rng = random.Random(7)
    texts = [" ".join(rng.choices(VOCABULARY, k=words)) for _ in range(originals)]
    for _ in range(copies):
        text = rng.choice(texts[:originals]).split()
        for place in rng.sample(range(words), rng.randrange(words * 9 // 100)):
            text[place] = rng.choice(VOCABULARY)
        texts.append(" ".join(text))
    rng.shuffle(texts)
    return texts


VOCABULARY = [f"word{number}" for number in range(3000)]


def units_of(texts: list[str], size: int = 50) -> dict[str, list[str]]:
    """Return ``texts`` as units of ``size`` documents."""
    return {f"unit{start:05d}": texts[start : start + size] for start in range(0, len(texts), size)}


def found(search: Duplicates) -> dict[str, list[int]]:
    """Return the result of a search as lists."""
    return {name: array.tolist() for name, array in search.find().items()}


def _killed_after(units: int, folder: Path) -> None:
    """Kill this process when the keys of so many units are stored."""
    files = DuplicateFiles(folder)
    stored = 0

    class Killing:
        load, remove = files.load, files.remove

        def store(self, group: str, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
            nonlocal stored
            files.store(group, name, arrays)
            stored += "-" not in name
            if stored >= units:
                os.kill(os.getpid(), signal.SIGKILL)

    Duplicates([reader(units_of(corpus()))], minhash(), Killing()).find()


if __name__ == "__main__":
    _killed_after(int(sys.argv[1]), Path(sys.argv[2]))
