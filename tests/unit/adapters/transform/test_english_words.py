"""The splitter gives the words that spaCy 3.8 gives, as they are recorded in english_words.json."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.transform.english_words import PieceTable, count_sentences, words_of

RECORDED = json.loads(Path(__file__).with_name("english_words.json").read_text("utf-8"))


def test_pieces_are_split_as_recorded():
    """Each of the recorded pieces has the recorded words."""
    assert len(RECORDED) == 400
    assert [(piece, words_of(piece)) for piece, _ in RECORDED] == [(piece, words) for piece, words in RECORDED]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop!", ["Do", "n't", "stop", "!"]),
        ("It\u2019s 5p.m., e.g. 10km.", ["It", "\u2019s", "5", "p.m.", ",", "e.g.", "10", "km", "."]),
        ('"Stop," (he said).', ['"', "Stop", ",", '"', "(", "he", "said", ")", "."]),
        (
            "well-known end.Start x/y http://example.org/a-b",
            ["well", "-", "known", "end", ".", "Start", "x", "/", "y", "http://example.org/a-b"],
        ),
        ("(see below):)", ["(", "see", "below", "):", ")"]),
        ("US$5 5US$ \u20ac3.50", ["US$", "5", "5", "US$", "\u20ac", "3.50"]),
        (" \n\t\xa0", []),
    ],
)
def test_words(text, words):
    """Affixes, units, contractions, abbreviations, emoticons and URLs are split as in spaCy."""
    assert words_of(text) == words


@given(st.text())
def test_words_make_up_the_text(text):
    """The words in order are the text without white space, and none is empty."""
    words = words_of(text)
    assert "".join(words) == "".join(text.split())
    assert all(words)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 1),
        ("no end", 1),
        ("One. Two! Three?", 3),
        ('He said "Go." Then he went.', 2),
        ("Mr. Smith went to St. Ives.", 1),
        ("Wait!  (what?) Yes.", 3),
        ("One.  ", 2),
        ("One. ", 1),
    ],
)
def test_sentences(text, number):
    """Sentences end behind full stops and the like, with the marks that follow."""
    assert count_sentences(text) == number


@pytest.mark.parametrize("mark", [*"(=.:@/#", ".a", ":@", "a:", "@a.", "\u2026x"])
def test_long_pieces_take_no_quadratic_time(mark):
    """A piece of 300,000 marks is split in a second or two; quadratic work would take longer than a test may."""
    piece = (mark * 300_000)[:300_000]
    assert "".join(words_of(piece)) == piece


def test_a_table_is_bounded_and_right_when_it_is_full():
    """A table that gets more pieces than it holds still gives the value of each, from several threads."""
    table = PieceTable(len)
    pieces = [str(number) for number in range(220_000)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: sum(map(table.__getitem__, pieces)), range(2)))
    assert found == [sum(map(len, pieces))] * 2
    assert len(table) <= 101_000
    assert table["x" * 1000] == 1000
    assert "x" * 1000 not in table
