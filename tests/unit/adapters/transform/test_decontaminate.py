"""The transform ``decontaminate`` finds planted evaluation texts, and leaves clean texts alone."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.transform import decontaminate as word_ngrams
from holdfast.adapters.transform.decontaminate import DecontaminateTransform, ngram_hashes
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Record
from tests.support.record_transforms import judged

QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many?"
ANSWER = (
    "Épicerie ouverte: l'été, près de la plage — où l'on vend des glaces à la crème, des journaux et du pain frais."
)
CLEAN = "Natalia sold clips to many friends in spring, and then half as many clips in May were sold by her to others."
WORDS = QUESTION.split()


@pytest.fixture
def sets(tmp_path):
    """Return the paths of an evaluation set of lines, and of one that is a plain text."""
    lines, plain = tmp_path / "math.jsonl", tmp_path / "shops.txt"
    lines.write_text(json.dumps({"question": QUESTION, "answer": "72"}) + "\n\n", encoding="utf-8")
    plain.write_text(ANSWER, encoding="utf-8")
    return [str(lines), str(plain)]


@pytest.fixture
def transform(sets):
    return DecontaminateTransform(files=sets, field="question")


LEAKS = (
    QUESTION,
    f"{CLEAN}\n{QUESTION}\n{CLEAN}",
    " ".join(WORDS[3:16]),
    QUESTION.upper().replace(" ", "\n\t").replace(",", " ;"),
    "«" + ANSWER + "»",
    unicodedata.normalize("NFD", ANSWER),
    ANSWER.replace("é", "e").replace("à", "a").replace("É", "E"),
    ANSWER.replace("'", "\u2019"),
    "京都 " * 40000 + QUESTION,
)


@pytest.mark.parametrize("text", LEAKS)
def test_planted_leaks_are_dropped(transform, text):
    """A run of 13 words of an evaluation set is found, whatever its case, accents, spacing and punctuation."""
    assert judged(transform, text) == "decontaminate.shared_ngram"


@pytest.mark.parametrize(
    "text", ["", CLEAN, CLEAN * 1000, " ".join(WORDS[3:15]), " ".join(reversed(WORDS)), "été " * 99]
)
def test_clean_text_stays(transform, text):
    """Runs of fewer words, and the same words in another order, are no leak."""
    record = Record(text)
    assert transform.apply([record])[0] is record


def test_an_ngram_does_not_reach_into_the_next_record(transform):
    """Two records that hold the halves of a leak are clean, next to each other or not."""
    halves = [Record(" ".join(WORDS[:10])), Record(" ".join(WORDS[10:]))]
    assert list(transform.apply([*halves, *halves])) == [*halves, *halves]


def test_each_record_gets_its_own_verdict(transform):
    """In a batch of plain and accented texts, long and short, each leak is found in its place."""
    texts = [*LEAKS, "", CLEAN, "ça va?", *LEAKS[::-1], CLEAN]
    found = [result.text if isinstance(result, Record) else None for result in transform.apply([*map(Record, texts)])]
    assert found == [None if text in LEAKS else text for text in texts]


def test_the_share_can_be_chosen(sets):
    """A record is dropped if more than max_share of its n-grams are shared; the detail has the numbers."""
    text = " ".join([*WORDS[:13], *["these", "are", "other", "words"]])  # 5 n-grams, 1 of them shared
    assert judged(DecontaminateTransform(files=sets, field="question", max_share=0.2), text) == text
    [dropped] = DecontaminateTransform(files=sets, field="question", max_share=0.19).apply([Record(text)])
    assert dropped.detail == "1 of 5 n-grams of 13 words are in evaluation sets"


def slow_ngrams(text, size):
    """Return the n-grams of words of ``text`` by a slow reference, without the texts in which it is not exact."""
    letters = []
    for character in unicodedata.normalize("NFKC", text):
        parts = [part for part in unicodedata.normalize("NFD", character.lower()) if unicodedata.category(part) != "Mn"]
        letters += [part if unicodedata.category(part)[0] in "LMN" else " " for part in parts]
    words = "".join(letters).split()
    return [tuple(words[first : first + size]) for first in range(len(words) - size + 1)]


some_text = st.text(st.sampled_from("abAB é\u0301É日\uff0c.,\n0ß\u017f_'-"), max_size=40)


@given(st.lists(some_text, max_size=5), st.integers(1, 3), st.sampled_from([1, 4, 1 << 16]))
def test_hashes_are_equal_where_ngrams_are(texts, size, chunk):
    """Hashes and owners agree with slow n-grams: as many of each text, equal exactly where the words are equal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_ngrams, "_CHUNK", chunk)
        word_ngrams._first_powers.cache_clear()
        hashes, owners = ngram_hashes(texts, size)
    word_ngrams._first_powers.cache_clear()
    expected = [slow_ngrams(text, size) for text in texts]
    assert [np.count_nonzero(owners == place) for place in range(len(texts))] == [*map(len, expected)]
    found = [hashes[owners == place].tolist() for place in range(len(texts))]
    pairs = {
        (ngram, each)
        for ngrams, those in zip(expected, found, strict=True)
        for ngram, each in zip(ngrams, those, strict=True)
    }
    assert len(pairs) == len({ngram for ngram, _ in pairs}) == len({each for _, each in pairs})


def test_hashes_have_no_collisions_among_many():
    """A hundred thousand different words and pairs of words have different hashes."""
    hashes, _ = ngram_hashes([" ".join(f"{number:x}" for number in range(100_000))], 1)
    pairs, _ = ngram_hashes([" ".join(f"{number:x}" for number in range(100_000))], 2)
    assert len({*hashes.tolist(), *pairs.tolist()}) == 199_999


def test_contents_are_in_the_fingerprint_and_paths_are_not(tmp_path, sets):
    """A file may move, but another content, n-gram or share is another transform."""
    before = DecontaminateTransform(files=sets[1:]).fingerprint()
    moved = tmp_path / "moved.txt"
    moved.write_text(ANSWER, encoding="utf-8")
    assert DecontaminateTransform(files=[str(moved)]).fingerprint() == before
    others = [
        DecontaminateTransform(files=sets[1:], **each).fingerprint() for each in ({"ngram": 5}, {"max_share": 0.1})
    ]
    moved.write_text(ANSWER + " More.", encoding="utf-8")
    others.append(DecontaminateTransform(files=[str(moved)]).fingerprint())
    assert len({before, *others}) == 4


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {}, r"eval\.jsonl of .* cannot be read"),
        ("{", {}, "line 1 of .* is no JSON"),
        ('{"text": 1}', {}, "line 1 of .* no object with a text in text"),
        ('{"text": "a"}\n[]', {"ngram": 1}, "line 2 of .* no object"),
        ('{"text": "\\ud800"}', {}, "text in line 1 of .* valid Unicode"),
        ('{"text": "too few words"}', {}, "has no text of 13 words.* lower ngram"),
        (b"\xff", {}, "cannot be read"),
        ("", {"ngram": 0}, "ngram of .* at least 1"),
        ("", {"ngram": 1.5}, "ngram of .* whole number"),
        ("", {"max_share": 2}, "max_share of .* from 0 to 1"),
        ("", {"files": "eval.jsonl"}, "files of .* must be a list"),
    ],
)
def test_wrong_options_are_told(tmp_path, content, options, message):
    """A wrong option or file is an error in one sentence."""
    path = tmp_path / "eval.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError, match=message):
        DecontaminateTransform(**({"files": [str(path)]} | options))
