"""The quality rules of C4: drops lines, and documents of which too little is left."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, final
from unicodedata import unidata_version

from typing_extensions import override

from holdfast.adapters.transform.english_words import count_sentences
from holdfast.adapters.transform.rule_options import fingerprint_of, switch, threshold
from holdfast.adapters.transform.text_statistics import dropped
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIND = "c4"
_VERSION = 1
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"', "'")
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


@final
class C4Transform(RecordTransform):
    """Drops lines and documents by C4's rules (arXiv 1910.10683, section 2.2), as datatrove's filter does.

    Drops lines that do not end like a sentence, have too few words or a word that is too long, or mention JavaScript,
    cookies or terms of use. Drops documents that mention lorem ipsum or a curly bracket in a line that is left, or in
    which too few sentences are left. The lines that are left are stripped of white space and, if ``remove_citations``,
    of marks of citations such as ``[1]``. None switches a rule with a number off, False one without. The list of bad
    words is not applied. Raises ``ConfigurationError`` for another value.
    """

    def __init__(
        self,
        *,
        remove_citations: bool = True,
        filter_no_terminal_punct: bool = True,
        min_num_sentences: int | None = 5,
        min_words_per_line: int | None = 3,
        max_word_length: int | None = 1000,
        filter_javascript: bool = True,
        filter_documents: bool = True,
        filter_policy: bool = True,
    ) -> None:
        self._has_no_citations = switch(_KIND, "remove_citations", remove_citations)
        self._must_end = switch(_KIND, "filter_no_terminal_punct", filter_no_terminal_punct)
        self._least_sentences = threshold(_KIND, "min_num_sentences", min_num_sentences)
        self._least_words = threshold(_KIND, "min_words_per_line", min_words_per_line)
        self._most_characters = threshold(_KIND, "max_word_length", max_word_length)
        self._has_no_javascript = switch(_KIND, "filter_javascript", filter_javascript)
        self._is_document_judged = switch(_KIND, "filter_documents", filter_documents)
        self._has_no_policy = switch(_KIND, "filter_policy", filter_policy)

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        return [self._result(record) for record in records]

    def _result(self, record: Record) -> Record | Dropped:
        kept = []
        for line in self._long_lines(record.text):
            lowered = line.lower()
            if self._is_document_judged and "lorem ipsum" in lowered:
                return Dropped(f"{_KIND}.lorem_ipsum", "A line has the filler text lorem ipsum.")
            if self._has_no_javascript and "javascript" in lowered:
                continue
            if self._is_document_judged and "{" in line:
                return Dropped(f"{_KIND}.curly_bracket", "A line has a curly bracket.")
            if self._has_no_policy and any(policy in lowered for policy in _POLICIES):
                continue
            kept.append(line)
        least = self._least_sentences
        if least is not None and len(kept) < least:  # each line has a sentence or more
            sentences = 0
            for line in kept:
                sentences += count_sentences(line)
                if sentences >= least:
                    break
            else:
                measure = "The number of sentences in the lines that are left"
                return dropped(_KIND, "too_few_sentences", measure, sentences, "min_num_sentences", least)
        text = "\n".join(kept).strip()
        return record if text == record.text else replace(record, text=text)

    def _long_lines(self, text: str) -> Sequence[str]:
        """Return the lines that end like a sentence and have enough words, none of which is too long."""
        least, most = self._least_words or 0, self._most_characters
        kept = []
        has_citations = self._has_no_citations and "[" in text
        for line in map(str.strip, text.splitlines()):
            left = _CITATION.sub("", line) if has_citations and "[" in line else line
            if self._must_end and (not left.endswith(_ENDS) or left.endswith("...")):
                continue
            words = line.split()
            if len(words) < least:
                continue
            if most is None or len(line) <= most or max(map(len, words)) <= most:
                kept.append(left)
        return kept

    @override
    def fingerprint(self) -> str:
        return fingerprint_of(
            _KIND,
            _VERSION,
            unicode=unidata_version,  # letters, marks and white space
            remove_citations=self._has_no_citations,
            filter_no_terminal_punct=self._must_end,
            min_num_sentences=self._least_sentences,
            min_words_per_line=self._least_words,
            max_word_length=self._most_characters,
            filter_javascript=self._has_no_javascript,
            filter_documents=self._is_document_judged,
            filter_policy=self._has_no_policy,
        )
