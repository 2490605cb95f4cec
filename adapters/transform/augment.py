"""Augmentation: other versions of documents, for texts that are read more than once or for code."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.transform.checked_options import finite_number, mapping_of
from holdfast.adapters.transform.fill_in_the_middle import Marks, Order, fill_in_the_middle
from holdfast.adapters.transform.noise import (
    Draws,
    change_case,
    change_spaces,
    make_typos,
    shuffle_lines,
    shuffle_sentences,
)
from holdfast.adapters.transform.transform_options import fingerprint_of, unicode_text, whole_number
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Mapping

_KIND = "augment"
_VERSION = 1
_CHANGES = {
    "case": change_case,
    "whitespace": change_spaces,
    "typos": make_typos,
    "sentences": shuffle_sentences,
    "lines": shuffle_lines,
}
_MARKS = {"prefix": "<fim_prefix>", "suffix": "<fim_suffix>", "middle": "<fim_middle>"}


@final
class AugmentTransform(Transform):
    """Changes documents at random: noise, another order of their parts, or fill-in-the-middle.

    A share of the documents, ``probability``, gets one of the changes case, whitespace, typos, sentences and lines,
    which are chosen by ``weights`` (equal by default). Case, whitespace and typos change a share ``noise`` of the
    words. Then a share ``fim_rate`` is cut at two random characters and rearranged for fill-in-the-middle, of which a
    share ``fim_spm_rate`` in the order suffix, prefix, middle, and the others in the order prefix, suffix, middle
    (arXiv 2207.14255; ``fim_marks`` are StarCoder's by default). A document that contains a mark is not rearranged.

    The randomness depends on the text and ``seed`` alone: a document is changed in the same way whenever it is read.

    The marks are text like any other: tokenizers of Holdfast never read a special token out of a document, so a mark
    that is a special token of the tokenizer is learned as the several ordinary tokens of its spelling. A mark becomes
    a single token if ``added_tokens`` of tokenizer.json contains it with special false.

    Raises ``ConfigurationError`` if an option is wrong, or if both ``probability`` and ``fim_rate`` are 0.
    """

    def __init__(
        self,
        *,
        probability: float = 0.0,
        weights: Mapping[str, float] | None = None,
        noise: float = 0.05,
        seed: int = 0,
        fim_rate: float = 0.0,
        fim_spm_rate: float = 0.5,
        fim_marks: Mapping[str, str] | None = None,
    ) -> None:
        self._probability = finite_number(_KIND, "probability", probability, least=0, most=1)
        self._fim_rate = finite_number(_KIND, "fim_rate", fim_rate, least=0, most=1)
        if self._probability == self._fim_rate == 0:
            msg = f"transform '{_KIND}' changes nothing: give it probability, fim_rate or both"
            raise ConfigurationError(msg)
        self._weights = _checked_weights(weights)
        self._noise = finite_number(_KIND, "noise", noise, least=0, most=1)
        self._seed = whole_number(_KIND, "seed", seed)
        self._spm_rate = finite_number(_KIND, "fim_spm_rate", fim_spm_rate, least=0, most=1)
        self._marks = _checked_marks(fim_marks)
        self._bounds = np.cumsum([*self._weights.values()]) / sum(self._weights.values())

    @override
    def __call__(self, text: str) -> str | None:
        draws = Draws(text, self._seed)
        if draws.share() < self._probability:
            place = int(np.searchsorted(self._bounds, draws.share(), side="right"))
            text = _CHANGES[[*self._weights][place]](text, draws, self._noise)
        if draws.share() < self._fim_rate and not self._marks.occur_in(text):
            first, second = sorted((draws.number(len(text) + 1), draws.number(len(text) + 1)))
            order: Order = "spm" if draws.share() < self._spm_rate else "psm"
            text = fill_in_the_middle(text, first, second, self._marks, order)
        return text

    @override
    def fingerprint(self) -> str:
        options = {"probability": self._probability, "noise": self._noise, "weights": self._weights}
        marks = [self._marks.prefix, self._marks.suffix, self._marks.middle]
        fim = {"fim_rate": self._fim_rate, "fim_spm_rate": self._spm_rate, "fim_marks": marks}
        unicode = unicodedata.unidata_version
        return fingerprint_of(_KIND, _VERSION, **options, **fim, seed=self._seed, unicode=unicode)


def _checked_weights(weights: Mapping[str, float] | None) -> Mapping[str, float]:
    """Return the weights above 0, in the order of the changes."""
    given = mapping_of(_KIND, "weights", weights, _CHANGES) or dict.fromkeys(_CHANGES, 1.0)
    checked = {name: finite_number(_KIND, f"{name} of weights", given.get(name, 0), least=0) for name in _CHANGES}
    if sum(checked.values()) == 0:
        msg = f"weights of transform '{_KIND}' are all 0: give one of them a number above 0"
        raise ConfigurationError(msg)
    return {name: weight for name, weight in checked.items() if weight}


def _checked_marks(marks: Mapping[str, str] | None) -> Marks:
    given = {**_MARKS, **mapping_of(_KIND, "fim_marks", marks, _MARKS)}
    checked = {name: unicode_text(_KIND, f"{name} of fim_marks", mark) for name, mark in given.items()}
    if len({*checked.values()}) < len(checked) or "" in checked.values():
        msg = f"fim_marks of transform '{_KIND}' must be three different texts, none of them empty"
        raise ConfigurationError(msg)
    return Marks(**checked)
