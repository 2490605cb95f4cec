"""Drops documents that contain parts of evaluation sets."""

from __future__ import annotations

import json
import sys
import unicodedata
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.transform.rule_options import (
    fingerprint_of,
    finite_number,
    list_of_texts,
    unicode_text,
    whole_number,
)
from holdfast.domain.data.permutation import mix
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
        digest, sets = blake2b(digest_size=16), []
        for path in map(Path, list_of_texts(_KIND, "files", files)):
            texts = _texts_of(path, self._field)
            hashes, _ = ngram_hashes(texts, self._size)
            if not len(hashes):
                msg = (
                    f"{path} of transform '{_KIND}' has no text of {self._size} words, so no document could share "
                    "one: lower ngram, or leave the file out"
                )
                raise ConfigurationError(msg)
            sets.append(hashes)
            digest.update(json.dumps(texts).encode())
        self._contents = digest.hexdigest()
        self._known = np.unique(np.concatenate(sets))
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


_CHUNK = 1 << 16  # characters hashed at once: their arrays fit in a processor's cache
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2**64
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_SPACE = 0x20
_NOTHING = 0
_UNKNOWN = np.uint32(0xFFFFFFFF)
_ASCII = bytes(ord(chr(byte).lower()) if byte < 128 and chr(byte).isalnum() else _SPACE for byte in range(256))


def ngram_hashes(texts: Sequence[str], size: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of all n-grams of ``size`` words, uint64 (n,), and the number of each one's text, int64 (n,).

    Words are runs of letters, marks and digits in NFKC, in lower case and without nonspacing marks, so that
    punctuation, spacing, case and accents make no difference. An n-gram lies within one text. Those of a text are in
    their order, but the texts may not be. Equal n-grams have equal hashes in every process; different ones have the
    same hash with a probability of about 2**-64.
    """
    plain = [place for place, text in enumerate(texts) if text.isascii()]
    other = [place for place, text in enumerate(texts) if not text.isascii()]
    found = [
        (hashes, np.array(places, np.int64)[owners])
        for places, normalized in ((plain, _ascii_words), (other, _unicode_words))
        if places
        for hashes, owners in [_hashes(*normalized([texts[place] for place in places]), size)]
    ]
    hashes = [np.zeros(0, np.uint64), *(hashes for hashes, _ in found)]
    return np.concatenate(hashes), np.concatenate([np.zeros(0, np.int64), *(owners for _, owners in found)])


def _ascii_words(texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the characters of the words with a space between them, and the position behind each text."""
    ends = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    return np.frombuffer("\n".join(texts).encode().translate(_ASCII), np.uint8), ends


def _unicode_words(texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    texts = [unicodedata.normalize("NFKC", text) for text in texts]
    ends = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    encoding = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
    codes = np.frombuffer("\n".join(texts).encode(encoding), np.uint32)
    table = _plain_characters()
    characters = table[codes]
    if len(characters) and characters.max() == _UNKNOWN:
        new = np.unique(codes[characters == _UNKNOWN])
        table[new] = [_plain(int(code)) for code in new]
        characters = table[codes]
    kept = np.flatnonzero(characters != _NOTHING)
    return characters[kept], np.searchsorted(kept, ends)


@cache
def _plain_characters() -> NDArray[np.uint32]:
    """Return the table of the characters by their code, uint32 (1114112,), which is filled as they occur."""
    return np.full(sys.maxunicode + 1, _UNKNOWN)


def _plain(code: int) -> int:
    """Return the code of a character in lower case without accent, of a space for signs, 0 for an accent alone."""
    letters = [part for part in unicodedata.normalize("NFD", chr(code).lower()) if unicodedata.category(part) != "Mn"]
    if not letters:
        return _NOTHING
    letter = unicodedata.normalize("NFC", "".join(letters))
    if unicodedata.category(letter[0])[0] not in "LMN":
        return _SPACE
    return ord(letter) if len(letter) == 1 else code


def _hashes(
    characters: NDArray[Any], ends: NDArray[np.int64], size: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    words, places = _word_hashes(characters)
    num_words = np.diff(np.searchsorted(places, ends), prepend=0)
    owners = np.repeat(np.arange(len(ends)), num_words)
    num_ngrams = max(0, len(words) - size + 1)
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words * _powers(_MULTIPLIER, len(words)), out=sums[1:])
    hashes = sums[size:] - sums[: len(sums) - size] if num_ngrams else np.zeros(0, np.uint64)
    hashes *= _powers(_INVERSE, num_ngrams)  # makes the sum independent of the place
    is_within = owners[:num_ngrams] == owners[len(words) - num_ngrams :]
    return hashes[is_within], owners[:num_ngrams][is_within]


def _word_hashes(characters: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return a hash of each word, uint64 (w,), and the position of its first character, int64 (w,)."""
    hashes, places = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for start, end in _chunks(characters):
        found, starts = _chunk_hashes(characters[start:end])
        hashes.append(found)
        places.append(starts + start)
    return np.concatenate(hashes), np.concatenate(places)


def _chunks(characters: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last position of pieces that no word crosses."""
    start = 0
    while start < len(characters):
        end = min(start + _CHUNK, len(characters))
        while end < len(characters) and not len(spaces := np.flatnonzero(characters[end : end + _CHUNK] == _SPACE)):
            end = min(end + _CHUNK, len(characters))
        end += int(spaces[0]) if end < len(characters) else 0
        yield start, end
        start = end


def _chunk_hashes(characters: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    is_word = np.zeros(len(characters) + 2, np.bool_)
    np.not_equal(characters, _SPACE, out=is_word[1:-1])
    edges = np.flatnonzero(is_word[1:] != is_word[:-1])
    starts, ends = edges[::2], edges[1::2]
    sums = np.zeros(len(characters) + 1, np.uint64)
    np.multiply(characters, _powers(_MULTIPLIER, len(characters)), out=sums[1:])
    np.cumsum(sums, out=sums)
    return mix((sums[ends] - sums[starts]) * _powers(_INVERSE, len(characters))[starts]), starts


def _powers(base: int, size: int) -> NDArray[np.uint64]:
    """Return the powers 0 to ``size`` - 1 of ``base`` modulo 2**64, uint64 (size,)."""
    return _first_powers(base)[:size] if size <= 2 * _CHUNK else _new_powers(base, size)


@cache
def _first_powers(base: int) -> NDArray[np.uint64]:
    return _new_powers(base, 2 * _CHUNK)


def _new_powers(base: int, size: int) -> NDArray[np.uint64]:
    powers = np.full(size, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, out=powers)
