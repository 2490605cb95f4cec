"""Drops documents that contain parts of evaluation sets."""

from __future__ import annotations

import json
import unicodedata
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.transform.checked_options import finite_number, list_of_texts
from holdfast.adapters.transform.transform_options import fingerprint_of, unicode_text, whole_number
from holdfast.adapters.transform.word_ngrams import ngram_hashes
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_KIND = "decontaminate"
_VERSION = 1
_BATCH = 1 << 20  # characters whose n-grams are looked up at once


@final
class DecontaminateTransform(RecordTransform):
    """Drops a record if more than ``max_share`` of its n-grams of words are in evaluation sets.

    ``files`` are the evaluation sets: each line of a .jsonl file is an object with a text in ``field``, and any other
    file is one text. By default a single n-gram of 13 words is enough, as for GPT-3 (Brown et al., arXiv 2005.14165,
    appendix C; datatrove's decont takes 12). ``ngram_hashes`` says how words are normalized. Documents of fewer words
    than an n-gram are kept. The reason of a drop is ``decontaminate.shared_ngram``. The fingerprint depends on the
    contents of the files, in their order, and not on their names.

    Raises ``ConfigurationError`` if an option is wrong, or if a file cannot be read or has no n-gram.
    """

    def __init__(self, *, files: Sequence[str], field: str = "text", ngram: int = 13, max_share: float = 0.0) -> None:
        self._field = unicode_text(_KIND, "field", field)
        self._size = whole_number(_KIND, "ngram", ngram)
        if self._size == 0:
            msg = f"ngram of transform '{_KIND}' must be at least 1"
            raise ConfigurationError(msg)
        self._max_share = finite_number(_KIND, "max_share", max_share, least=0, most=1)
        digest, found = blake2b(digest_size=16), []
        for path in map(Path, list_of_texts(_KIND, "files", files)):
            texts = _texts_of(path, self._field)
            hashes, _ = ngram_hashes(texts, self._size)
            if not len(hashes):
                msg = (
                    f"{path} of transform '{_KIND}' has no text of {self._size} words, so no document could share "
                    "one: lower ngram, or leave the file out"
                )
                raise ConfigurationError(msg)
            found.append(hashes)
            digest.update(json.dumps(texts).encode())
        self._contents = digest.hexdigest()
        self._known = np.unique(np.concatenate(found))
        # most n-grams are unknown: a table of bits of the hash tells so without a search, wrongly for 1 in 8 at most
        self._shift = np.uint64(64 - max(16, (8 * len(self._known)).bit_length()))
        self._may_be_known = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._may_be_known[self._known >> self._shift] = True

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        return [judged for batch in _batches(records) for judged in self._judged(batch)]

    def _judged(self, records: Sequence[Record]) -> Iterator[Record | Dropped]:
        hashes, owners = ngram_hashes([record.text for record in records], self._size)
        all_of = np.bincount(owners, minlength=len(records))
        shared = np.bincount(owners[self._is_known(hashes)], minlength=len(records))
        is_dropped = shared > self._max_share * all_of
        for place, record in enumerate(records):
            if is_dropped[place]:
                detail = f"{shared[place]} of {all_of[place]} n-grams of {self._size} words are in evaluation sets"
                yield Dropped(f"{_KIND}.shared_ngram", detail)
            else:
                yield record

    def _is_known(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the places in ``hashes`` of those that evaluation sets have, int64."""
        possible = np.flatnonzero(self._may_be_known[(hashes >> self._shift).view(np.int64)])
        places = np.searchsorted(self._known, hashes[possible])
        places[places == len(self._known)] = 0
        found: NDArray[np.int64] = possible[self._known[places] == hashes[possible]]
        return found

    @override
    def fingerprint(self) -> str:
        options = {"ngram": self._size, "max_share": self._max_share, "contents": self._contents}
        return fingerprint_of(_KIND, _VERSION, **options, unicode=unicodedata.unidata_version)


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    start = size = 0
    for place, record in enumerate(records):
        if size and size + len(record.text) > _BATCH:
            yield records[start:place]
            start, size = place, 0
        size += len(record.text)
    yield records[start:]


def _texts_of(path: Path, field: str) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        msg = f"{path} of transform '{_KIND}' cannot be read: {error}"
        raise ConfigurationError(msg) from error
    if path.suffix != ".jsonl":
        return [content]
    lines = content.split("\n")
    return [_text_in(line, field, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line.strip()]


def _text_in(line: str, field: str, place: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = f"{place} of transform '{_KIND}' is no JSON: {error}"
        raise ConfigurationError(msg) from error
    text = record.get(field) if isinstance(record, dict) else None
    if isinstance(text, str):
        return unicode_text(_KIND, f"{field} in {place}", text)
    msg = f"{place} of transform '{_KIND}' is no object with a text in {field}: name the right field"
    raise ConfigurationError(msg)
