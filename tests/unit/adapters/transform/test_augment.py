"""The transform ``augment``: each change does only what it says, at the rate that was asked for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.adapters.transform.augment import AugmentTransform, Marks, fill_in_the_middle
from holdfast.domain.errors import ConfigurationError

PROSE = (
    "It rained all day. Nobody went out! Did the cat mind? It slept on.\nThe sun came back. All was well.\n\nThe end."
)
MANY = [f"Document {number} begins. {PROSE} It has the number {number}." for number in range(400)]
MARKS = Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
texts = st.text(st.characters(exclude_categories=["Cs"]))


def only(change, **options):
    return AugmentTransform(**{"probability": 1, "weights": {change: 1}, "noise": 0.5} | options)


def letters(text):
    return Counter("".join(text.split()))


@given(texts)
def test_case_noise_changes_case_alone(text):
    """The text is the same without regard to case."""
    for word, was in zip(only("case")(text).split(), text.split(), strict=True):
        assert word in {was, was.upper(), was.lower(), was.capitalize()}


@given(texts)
def test_space_noise_changes_spaces_alone(text):
    """All other characters stay in their order."""
    assert "".join(only("whitespace")(text).split()) == "".join(text.split())


@given(texts)
def test_typing_errors_concern_one_or_two_letters_of_a_word(text):
    """Words stay in their places, keep their first letter, and change length by one letter at most."""
    changed = only("typos")(text)
    assert [
        (word[0], abs(len(word) - len(was)) <= 1) for word, was in zip(changed.split(), text.split(), strict=True)
    ] == [(was[0], True) for was in text.split()]


def test_sentences_change_places_within_their_line():
    """Each line has the same sentences, and the order of some line is another one."""
    results = {only("sentences", seed=seed)(PROSE) for seed in range(20)}
    assert len(results) > 5
    for result in results:
        for line, was in zip(result.split("\n"), PROSE.split("\n"), strict=True):
            assert letters(line) == letters(was)
            assert line.endswith((".", "!", "?")) or not was


@given(texts)
def test_lines_change_places(text):
    """The lines are the same, and blank ones stay where they were."""
    changed, lines = only("lines")(text).split("\n"), text.split("\n")
    assert sorted(changed) == sorted(lines)
    assert [line.strip() == "" for line in changed] == [line.strip() == "" for line in lines]


@pytest.mark.parametrize("change", ["case", "whitespace", "typos"])
def test_noise_is_the_share_of_changed_words(change):
    """With little noise most words stay, with none all do, and with full noise many change."""
    word, text = "sentence", " ".join(["sentence"] * 4000)
    shares = []
    for noise in (0, 0.1, 1):
        changed = only(change, noise=noise)(text).replace("\t", "\t ").replace("\n", "\n ").replace("  ", "_ ")
        shares.append(1 - changed.split(" ").count(word) / 4000)
    assert shares[0] == 0
    assert 0.03 < shares[1] < 0.25
    assert shares[2] > 0.5


def test_probability_is_the_share_of_changed_documents():
    """About a quarter of the documents change, by the changes that have a weight."""
    transform = AugmentTransform(probability=0.25, weights={"lines": 3, "sentences": 1, "typos": 0})
    changed = [text for text in MANY if transform(text) != text]
    assert 60 < len(changed) < 140
    by_lines = [text for text in changed if sorted(transform(text).split("\n")) == sorted(text.split("\n"))]
    assert 0.5 < len(by_lines) / len(changed) < 0.95


def test_the_seed_chooses_other_documents():
    """Two seeds agree by chance only, and one seed agrees with itself."""
    first, second = (
        [text for text in MANY if AugmentTransform(probability=0.5, seed=seed)(text) != text] for seed in (1, 2)
    )
    assert first != second
    assert first == [text for text in MANY if AugmentTransform(probability=0.5, seed=1)(text) != text]


@given(texts, st.data())
def test_the_parts_can_be_put_together_again(text, data):
    """Both orders have the paper's marks, and give the text back."""
    first = data.draw(st.integers(0, len(text)))
    second = data.draw(st.integers(first, len(text)))
    prefix, middle, suffix = text[:first], text[first:second], text[second:]
    psm, spm = (fill_in_the_middle(text, first, second, MARKS, order) for order in ("psm", "spm"))
    assert psm == f"<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>{middle}"
    assert spm == f"<fim_prefix><fim_suffix>{suffix}<fim_middle>{prefix}{middle}"


def test_rates_of_fill_in_the_middle():
    """A share of the documents is rearranged, a share of these begins with the suffix, and cuts lie everywhere."""
    results = [AugmentTransform(fim_rate=0.5, fim_spm_rate=0.25)(text) for text in MANY]
    rearranged = [result for result in results if result.startswith("<fim_prefix>")]
    assert [
        text for text, result in zip(MANY, results, strict=True) if result not in rearranged and result != text
    ] == []
    assert 150 < len(rearranged) < 250
    with_suffix_first = sum(result.startswith("<fim_prefix><fim_suffix>") for result in rearranged)
    assert 0.13 < with_suffix_first / len(rearranged) < 0.4
    lengths = sorted(len(result.split("<fim_suffix>")[0]) for result in rearranged if "<fim_prefix><" not in result)
    assert lengths[0] < 40
    assert lengths[-1] > 100


def test_a_document_with_a_mark_is_not_rearranged():
    """A mark that stands in the document would make the parts ambiguous."""
    transform = AugmentTransform(fim_rate=1)
    assert transform("a <fim_middle> b") == "a <fim_middle> b"
    assert transform("a <fim_suffi> b") != "a <fim_suffi> b"
    marks = {"prefix": "<PRE>", "suffix": "<SUF>", "middle": "<MID>"}
    assert AugmentTransform(fim_rate=1, fim_spm_rate=0, fim_marks=marks)("<fim_middle>").startswith("<PRE>")


@pytest.mark.parametrize("is_special", [True, False])
def test_marks_in_a_text_are_ordinary_text(is_special):
    """A special token is spelled out, as the documentation says; an added token that is not special is one token."""
    core = Tokenizer(
        models.BPE(vocab={c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(["<|endoftext|>"])
    add = core.add_special_tokens if is_special else core.add_tokens
    add([AddedToken("<fim_prefix>", special=is_special, normalized=False)])
    tokenizer = HuggingfaceTokenizer(core.to_str())
    ids = tokenizer.encode(["<fim_prefix>a"])
    assert (core.token_to_id("<fim_prefix>") in ids.ids) is not is_special


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "changes nothing: give it probability, fim_rate or both"),
        ({"probability": 1.5}, "probability of .* from 0 to 1, not 1.5"),
        ({"probability": 1, "weights": {"synonyms": 1}}, "each key of weights .* not 'synonyms'"),
        ({"probability": 1, "weights": {"case": -1}}, "case of weights .* from 0 on, not -1"),
        ({"probability": 1, "weights": {"case": 0}}, "weights of .* are all 0"),
        ({"probability": 1, "noise": "much"}, "noise of .* from 0 to 1, not 'much'"),
        ({"probability": 1, "seed": -1}, "seed of .* whole number from 0 on, not -1"),
        ({"fim_rate": -0.1}, "fim_rate of .* from 0 to 1"),
        ({"fim_rate": 1, "fim_spm_rate": 2}, "fim_spm_rate of .* from 0 to 1"),
        ({"fim_rate": 1, "fim_marks": {"end": "x"}}, "each key of fim_marks .* not 'end'"),
        ({"fim_rate": 1, "fim_marks": {"prefix": ""}}, "three different texts, none of them empty"),
        ({"fim_rate": 1, "fim_marks": {"prefix": "<fim_middle>"}}, "three different texts"),
    ],
)
def test_wrong_options_are_told(options, message):
    """A wrong option is an error in one sentence."""
    with pytest.raises(ConfigurationError, match=message):
        AugmentTransform(**options)
