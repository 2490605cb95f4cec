"""Scores documents by a function of another package."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.adapters.transform.rule_options import fingerprint_of, finite_number, unicode_text
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_KIND = "score"
_VERSION = 1


@final
class ScoreTransform(RecordTransform):
    """Stores the number that ``function`` gives for a text as the score ``name`` of the record.

    ``function`` takes a text and returns a number, or with ``takes_many`` a list of texts and returns as many numbers.
    It must fulfil the port's contract: pure, and usable from several threads at once. ``function_fingerprint`` must
    change with its behaviour. A record with a score below ``min`` or above ``max`` is dropped, with the reason
    ``score.NAME_too_low`` or ``score.NAME_too_high``.

    Raises ``ConfigurationError`` if an option is wrong or no number lies between ``min`` and ``max``. A result of
    ``function`` that is no finite number raises ``ValueError``.
    """

    def __init__(
        self,
        *,
        name: str,
        function: Callable[[Any], Any],
        function_fingerprint: str,
        takes_many: bool = False,
        min: float | None = None,  # noqa: A002 - the name of the option in the settings
        max: float | None = None,  # noqa: A002
    ) -> None:
        self._name = unicode_text(_KIND, "name", name)
        if not self._name:
            msg = f"name of transform '{_KIND}' must not be empty: it names the score"
            raise ConfigurationError(msg)
        self._function = function
        self._function_fingerprint = function_fingerprint
        if not isinstance(takes_many, bool):
            msg = f"takes_many of transform '{_KIND}' must be true or false, not {takes_many!r}"
            raise ConfigurationError(msg)
        self._takes_many = takes_many
        self._least = None if min is None else finite_number(_KIND, "min", min)
        self._most = None if max is None else finite_number(_KIND, "max", max)
        if self._least is not None and self._most is not None and self._least > self._most:
            msg = f"transform '{_KIND}' drops everything: min, now {min}, must be at most max, now {max}"
            raise ConfigurationError(msg)

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        texts = [record.text for record in records]
        scores = list(self._function(texts)) if self._takes_many else [self._function(text) for text in texts]
        if len(scores) != len(texts):
            msg = f"the function of the score {self._name} gave {len(scores)} numbers for {len(texts)} texts"
            raise ValueError(msg)
        return [self._scored(record, value) for record, value in zip(records, scores, strict=True)]

    def _scored(self, record: Record, value: Any) -> Record | Dropped:
        score = float(value)
        if not isfinite(score):
            msg = f"the function of the score {self._name} gave {score}, which is no finite number"
            raise ValueError(msg)
        if self._least is not None and score < self._least:
            return Dropped(f"{_KIND}.{self._name}_too_low", f"{self._name} is {score:g}, below {self._least:g}")
        if self._most is not None and score > self._most:
            return Dropped(f"{_KIND}.{self._name}_too_high", f"{self._name} is {score:g}, above {self._most:g}")
        return Record(record.text, record.fields, {**record.scores, self._name: score}, record.warnings)

    @override
    def fingerprint(self) -> str:
        options = {"name": self._name, "min": self._least, "max": self._most}
        return fingerprint_of(_KIND, _VERSION, **options, function=self._function_fingerprint)
