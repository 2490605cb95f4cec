import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.data import near_duplicates as shingles
from holdfast.domain.data.near_duplicates import (
    band_keys,
    choose_bands,
    distinct,
    folded,
    found_share,
    jaccard,
    shingles_of,
)

TEXTS = st.lists(st.one_of(st.text("ab c_,\n1é", max_size=40), st.text(max_size=20)), max_size=6)


def words(text):
    """Return the words of ``text``, by a regular expression over its marked characters."""
    marked = "".join(_marked(each) for each in text)
    return re.findall(r"W+|U", marked), [match.span() for match in re.finditer(r"W+|U", marked)]


def _marked(character):
    if not (character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"):
        return " " if ord(character) < 0x20000 else "U"
    is_unspaced = any(first <= ord(character) <= last for first, last in shingles._UNSPACED) or ord(character) > 0x1FFFF
    return "U" if is_unspaced else "W"


def sequences(text, ngram):
    """Return the sequences of words of ``text`` one by one, as tuples."""
    found = [text[first:last] for first, last in words(text)[1]] or ["", text]
    found += [None] * (ngram - len(found))
    return [tuple(found[start : start + ngram]) for start in range(len(found) - ngram + 1)] if found[0] != "" else None


@given(TEXTS, st.integers(1, 5))
def test_equal_hashes_are_equal_sequences(texts, ngram):
    """Over all texts, two hashes are equal exactly if the sequences of words are."""
    hashes, offsets = shingles_of(texts, ngram)
    known = {}
    for number, text in enumerate(texts):
        own = hashes[offsets[number] : offsets[number + 1]].tolist()
        expected = sequences(text, ngram) or [text.encode()]
        assert len(own) == len(expected)
        for each, sequence in zip(own, expected, strict=True):
            assert known.setdefault(sequence, each) == each
    assert len(set(known.values())) == len(known)


@given(TEXTS, st.integers(1, 5), st.data())
def test_neighbors_change_nothing(texts, ngram, data):
    """The hashes of a text are the same alone and among others."""
    cut = data.draw(st.integers(0, len(texts)))
    whole, offsets = shingles_of(texts, ngram)
    first, second = shingles_of(texts[:cut], ngram), shingles_of(texts[cut:], ngram)
    assert whole.tolist() == [*first[0].tolist(), *second[0].tolist()]
    assert np.diff(offsets).tolist() == [*np.diff(first[1]).tolist(), *np.diff(second[1]).tolist()]


def test_long_texts_are_hashed_in_slices():
    """A text longer than a slice has the words that it has, also when it stands among short texts."""
    long = "words " * (shingles._SLICE // 6 + 9)
    hashes, offsets = shingles_of(["a b", long, "c d"], 1)
    assert np.diff(offsets).tolist() == [2, long.count(" ") + 1, 2]  # one word is on the border
    assert set(shingles_of(["words"], 1)[0].tolist()) < set(hashes[2:-2].tolist())
    assert hashes[-2:].tolist() == shingles_of(["c d"], 1)[0].tolist()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It's 12_3, done!", 4),
        ("किताब पढ़ी", 2),
        ("日本語の本", 5),
        ("naïve café", 2),
        ("\ud800 a", 1),
        ("...", 1),
        ("", 1),
    ],
)
def test_words_of_languages(text, count):
    """Words are runs of letters, digits and marks; scripts without spaces have a word for each character."""
    assert len(shingles_of([text], 1)[0]) == count


def test_hashes_are_the_same_in_every_version():
    """The hash of a known text does not change, as keys are compared across processes."""
    hashes, _ = shingles_of(["The quick brown fox jumps over the lazy dog."], 5)
    assert hashes.tolist()[:2] == [17834298311021351682, 2813774375878739916]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), max_size=5))
def test_distinct_values_of_each_text(sets):
    """Each text keeps each of its values once."""
    flat = np.array([value << 32 for each in sets for value in each], np.uint64)
    offsets = np.cumsum([0, *map(len, sets)])
    values, sizes = distinct(flat, offsets)
    parts = np.split(values, np.cumsum(sizes)[:-1]) if sets else []
    assert [part.tolist() for part in parts] == [sorted(set(each)) for each in sets]


@given(st.sets(st.integers(0, 20), min_size=1), st.sets(st.integers(0, 20), min_size=1))
def test_jaccard_is_that_of_sets(first, second):
    """The similarity of arrays is that of the sets with the same values."""
    arrays = [np.array(sorted(each), np.uint32) for each in (first, second)]
    assert jaccard(*arrays) == len(first & second) / len(first | second)


def test_bands_agree_where_all_their_rows_do():
    """A key of a band depends on all rows of this band and on no other."""
    signatures = np.random.default_rng(0).integers(0, 2**32, (2, 12), np.uint32)
    signatures[1] = signatures[0]
    signatures[1, [5, 11]] += 1
    keys = band_keys(signatures, 4)
    assert (keys[:, 0] == keys[:, 1]).tolist() == [True, False, True, False]


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("permutations", [16, 112, 256])
def test_bands_are_the_fewest_that_find_enough(threshold, permutations):
    """The chosen bands find 95 % of the pairs at the threshold, and longer ones would not."""
    bands = choose_bands(threshold, permutations)
    rows = permutations // bands
    assert found_share(threshold, bands, rows) >= 0.95
    assert rows == permutations or found_share(threshold, permutations // (rows + 1), rows + 1) < 0.95


def test_bands_of_fineweb_find_less():
    """At 0.8, 16 bands of 7 rows find 97.7 % of the pairs, and the 14 bands of 8 rows of FineWeb 92.4 %."""
    assert choose_bands(0.8, 112) == 16
    assert found_share(0.8, 16, 7) == pytest.approx(0.977, abs=5e-4)
    assert found_share(0.8, 14, 8) == pytest.approx(0.924, abs=5e-4)


def test_folding_keeps_white_space():
    """Folding lowers the case and composes characters, in this order."""
    assert folded("A  É\n") == "a  é\n"
    assert unicodedata.is_normalized("NFC", folded("İ\u0316"))
