"""Profiles of made-up documents."""

from __future__ import annotations

import numpy as np

from holdfast.domain.data.profile import ProfileBuilder

_WORDS = 2000
_LETTERS = ("abcdefghijklmnopqrstuvwxyz", "абвгдежзийклмнопрстуфхцчшщъыьэюя")


def _vocabulary(letters):
    numbers = np.random.default_rng(1)
    return np.array(["".join(numbers.choice([*letters], numbers.integers(2, 9))) for _ in range(_WORDS)])


_VOCABULARIES = [_vocabulary(letters) for letters in _LETTERS]
_SHARES = 1 / np.arange(1, _WORDS + 1) ** 1.05
_UPTO = np.cumsum(_SHARES / _SHARES.sum())


def documents(seed, number, *, foreign=0.0, factor=1):
    """Return texts, ids, offsets and hashes of ``number`` documents.

    Each repeats a few words of its own. The share ``foreign`` of them is in a second language, and each is ``factor``
    times as long as usual.
    """
    numbers = np.random.default_rng(seed)
    texts, ids, lengths = [], [], []
    for _ in range(number):
        length = (int(numbers.lognormal(4.5, 0.8)) + 5) * factor
        words = np.minimum(np.searchsorted(_UPTO, numbers.random(length)), _WORDS - 1)
        own = numbers.integers(0, _WORDS, 10)[numbers.integers(0, 10, length)]
        words = np.where(numbers.random(length) < 0.2, own, words)
        language = int(numbers.random() < foreign)
        texts.append(" ".join(_VOCABULARIES[language][words]))
        ids += [words + 1 + _WORDS * language, [0]]
        lengths.append(length + 1)
    hashes = numbers.integers(0, 2**64 - 1, number, dtype=np.uint64)
    return texts, np.concatenate(ids).astype(np.uint16), np.cumsum([0, *lengths]), hashes


def profile_of_documents(seed, number, *, languages=None, rejects=None, **options):
    """Return the profile of ``documents``."""
    builder = ProfileBuilder()
    builder.add(*documents(seed, number, **options))
    return builder.build(languages, rejects)
