"""The quality rules of FineWeb: drops documents by their lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, final
from unicodedata import unidata_version

from typing_extensions import override

from holdfast.adapters.transform.english_words import words_of
from holdfast.adapters.transform.rule_options import fingerprint_of, marks, switch, threshold
from holdfast.adapters.transform.text_statistics import TERMINAL_MARKS, above, below, dropped, repeated
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIND = "fineweb"
_VERSION = 1


@final
class FinewebTransform(RecordTransform):
    """Drops documents by FineWeb's quality rules (arXiv 2406.17557, section 3.6), as datatrove's filter does.

    ``stop_chars`` are the marks that end a line well, by default the terminal marks of all scripts;
    ``short_line_length`` is in characters. Each other option is the threshold of a rule, and None switches the rule
    off; docs/transforms.md lists the rules. A document of white space is dropped too. Raises ``ConfigurationError``
    for another value.
    """

    def __init__(
        self,
        *,
        line_punct_thr: float | None = 0.12,
        line_punct_exclude_zero: bool = False,
        stop_chars: Sequence[str] | None = None,
        short_line_thr: float | None = 0.67,
        short_line_length: int = 30,
        char_duplicates_ratio: float | None = 0.01,
        new_line_ratio: float | None = 0.3,
    ) -> None:
        self._least_ended = threshold(_KIND, "line_punct_thr", line_punct_thr)
        self._is_zero_kept = switch(_KIND, "line_punct_exclude_zero", line_punct_exclude_zero)
        self._ends = tuple(marks(_KIND, "stop_chars", TERMINAL_MARKS if stop_chars is None else stop_chars))
        self._end_characters = frozenset(self._ends) if all(len(end) == 1 for end in self._ends) else None
        self._most_short = threshold(_KIND, "short_line_thr", short_line_thr)
        self._short = threshold(_KIND, "short_line_length", short_line_length) or 0
        self._most_repeated = threshold(_KIND, "char_duplicates_ratio", char_duplicates_ratio)
        self._most_breaks = threshold(_KIND, "new_line_ratio", new_line_ratio)

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        return [self._verdict(record.text) or record for record in records]

    def _verdict(self, text: str) -> Dropped | None:
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        if not lines:
            return Dropped(f"{_KIND}.empty", "The document has no line with a character other than white space.")
        ended = self._ended(lines) / len(lines)
        if below(ended, self._least_ended) and not (ended == 0 and self._is_zero_kept):
            measure = "The share of lines that end with a terminal punctuation mark"
            return dropped(_KIND, "too_few_ended_lines", measure, ended, "line_punct_thr", self._least_ended)
        short = sum(len(line) <= self._short for line in lines) / len(lines)
        if above(short, self._most_short):
            measure = f"The share of lines with at most {self._short:g} characters"
            return dropped(_KIND, "too_many_short_lines", measure, short, "short_line_thr", self._most_short)
        breaks = text.count("\n")
        again = repeated(lines)[1] / (len(text) - breaks)
        if above(again, self._most_repeated):
            measure = "The share of characters in lines that repeat an earlier line"
            return dropped(_KIND, "repeated_lines", measure, again, "char_duplicates_ratio", self._most_repeated)
        # each piece between white space has a word or more
        if above(breaks / len(text.split()), self._most_breaks):
            rate = breaks / len(words_of(text))
            if above(rate, self._most_breaks):
                measure = "The number of line ends a word"
                return dropped(_KIND, "too_many_lines", measure, rate, "new_line_ratio", self._most_breaks)
        return None

    def _ended(self, lines: Sequence[str]) -> int:
        if self._end_characters is not None:
            return sum(line[-1] in self._end_characters for line in lines)
        return sum(line.endswith(self._ends) for line in lines)

    @override
    def fingerprint(self) -> str:
        return fingerprint_of(
            _KIND,
            _VERSION,
            unicode=unidata_version,  # letters, marks and white space
            line_punct_thr=self._least_ended,
            line_punct_exclude_zero=self._is_zero_kept,
            stop_chars=self._ends,
            short_line_thr=self._most_short,
            short_line_length=self._short,
            char_duplicates_ratio=self._most_repeated,
            new_line_ratio=self._most_breaks,
        )
