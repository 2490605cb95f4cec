"""Validates records: the rules for their fields, and bounds for measures of their text."""

from __future__ import annotations

import unicodedata
import zlib
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.transform.field_rules import ABSENT, FieldCheck, describe_violation
from holdfast.adapters.transform.outlier_measures import measure_texts
from holdfast.adapters.transform.rule_options import fingerprint_of
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.adapters.transform.field_rules import Action, FieldRules
    from holdfast.adapters.transform.outlier_measures import CountTokens

_KIND = "validation"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class OutlierBounds:
    """The values of ``measure`` from ``low`` to ``high``, None for no bound, that are not outliers."""

    measure: str
    low: float | None
    high: float | None
    action: Action


@final
@dataclass(frozen=True, slots=True)
class _Violation:
    reason: str
    action: Action
    detail: str
    setting: str


@final
class ValidationTransform(RecordTransform):
    """Checks each record against the rules of its ``fields`` and the bounds of its ``outliers``.

    The reason is ``validation.FIELD.RULE`` or ``validation.outliers.MEASURE``. A violation with the action ``reject``
    drops the record, ``stop`` also ends the run, and ``warn`` adds the reason to the record's warnings. Rules are
    checked field by field in the order of the fields' names, then the outliers; the first violation that stops counts,
    otherwise the first one that rejects. Values are JSON values. ``text_field`` is the name under which ``fields``
    has the rules for the text. With ``judges_blank`` texts may be empty: then they are missing, if the text is
    required, and no outliers.

    ``count_tokens`` returns the number of tokens of each text, for the measure ``bytes_per_token``; ``tokenizer`` is
    the fingerprint of its tokenizer.
    """

    def __init__(
        self,
        fields: Sequence[FieldRules] = (),
        outliers: Sequence[OutlierBounds] = (),
        *,
        text_field: str = "text",
        count_tokens: CountTokens | None = None,
        tokenizer: str = "",
        judges_blank: bool = False,
    ) -> None:
        self._judges_blank = judges_blank
        self._rules = sorted(fields, key=lambda rules: rules.field)
        self._checks = [check for check in map(FieldCheck, self._rules) if not check.is_empty]
        self._outliers = sorted(outliers, key=lambda bounds: bounds.measure)
        self._text_field = text_field
        self._count_tokens = count_tokens
        self._tokenizer = tokenizer

    @property
    @override
    def fields(self) -> Sequence[str]:
        return [check.field for check in self._checks if check.field != self._text_field]

    @property
    def outliers(self) -> Sequence[OutlierBounds]:
        """Return the bounds of the measures, sorted by measure."""
        return tuple(self._outliers)

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        results: list[Record | Dropped] = list(records)
        texts = [record.text for record in records]
        by_record: dict[int, list[_Violation]] = {}
        for position, violation in self._field_violations(records, texts):
            by_record.setdefault(position, []).append(violation)
        for position, violation in self._outlier_violations(texts):
            if texts[position]:
                by_record.setdefault(position, []).append(violation)
        for position, violations in by_record.items():
            results[position] = _verdict(records[position], violations)
        return results

    @override
    def fingerprint(self) -> str:
        measures = {bounds.measure for bounds in self._outliers}
        is_unicode = "symbols" in measures or any(rule.name == "pattern" for each in self._rules for rule in each.rules)
        return fingerprint_of(
            _KIND,
            _VERSION,
            fields=[astuple(rules) for rules in self._rules],
            outliers=[astuple(bounds) for bounds in self._outliers],
            text_field=self._text_field,
            unicode=unicodedata.unidata_version if is_unicode else None,
            zlib=zlib.ZLIB_RUNTIME_VERSION if "compression_ratio" in measures else None,
            tokenizer=self._tokenizer if "bytes_per_token" in measures else None,
            **({"judges_blank": True} if self._judges_blank else {}),
        )

    def _field_violations(self, records: Sequence[Record], texts: Sequence[str]) -> Iterator[tuple[int, _Violation]]:
        for check in self._checks:
            name = check.field
            is_text = name == self._text_field
            values: Sequence[object] = texts
            if not is_text:
                values = [record.fields.get(name, ABSENT) for record in records]
            elif check.is_required:
                values = [text or ABSENT for text in texts]
            for position, rule, value in check.violations(values):
                detail = describe_violation(name, rule, value)
                setting = f"data.validation.fields.{name}"
                yield position, _Violation(f"{_KIND}.{name}.{rule.name}", rule.action, detail, setting)

    def _outlier_violations(self, texts: Sequence[str]) -> Iterator[tuple[int, _Violation]]:
        measured = measure_texts(texts, [bounds.measure for bounds in self._outliers], self._count_tokens)
        for bounds in self._outliers:
            values = measured[bounds.measure]
            low = -np.inf if bounds.low is None else bounds.low
            high = np.inf if bounds.high is None else bounds.high
            for position in np.flatnonzero((values < low) | (values > high)).tolist():
                value = float(values[position])
                side = f"below {low:.6g}" if value < low else f"above {high:.6g}"
                detail = f"{bounds.measure} of the text is {value:.6g}, {side}"
                setting = f"data.validation.outliers.{bounds.measure}"
                yield position, _Violation(f"{_KIND}.outliers.{bounds.measure}", bounds.action, detail, setting)


def _verdict(record: Record, violations: Sequence[_Violation]) -> Record | Dropped:
    for action in ("stop", "reject"):
        for each in violations:
            if each.action == action:
                remedy = f": repair the record, or change {each.setting}" if action == "stop" else ""
                return Dropped(each.reason, each.detail + remedy, ends_run=action == "stop")
    return replace(record, warnings=(*record.warnings, *(each.reason for each in violations)))
