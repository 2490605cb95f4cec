"""Replaces the matches of a regular expression."""

from __future__ import annotations

import time
from functools import cache
from itertools import chain
from typing import Any, final

import regex
from typing_extensions import override

from holdfast.adapters.transform.rule_options import fingerprint_of, unicode_text
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Transform

_KIND = "replace"
_VERSION = 2
_BAD = (regex.error, IndexError, OverflowError, RecursionError, ValueError)
_MOST_SECONDS = 86400
_SHOWN_CHARACTERS = 80


@final
class ReplaceTransform(Transform):
    r"""Replaces all matches of ``pattern`` by ``replacement``, as the package ``regex`` does in its version 0.

    It supports the syntax of Python's ``re.sub`` and more. Raises ``ConfigurationError`` if ``pattern`` or
    ``replacement`` is not valid. A text that takes more than ``seconds`` of a processor core raises ``TimeoutError``,
    on a busy machine after several times as long: repetition within repetition, as in ``(a|aa)+$``, could take for
    ever. ``\w`` and the like go by the Unicode tables of ``regex``, so another Unicode version gives another
    fingerprint.
    """

    def __init__(self, *, pattern: str, replacement: str, seconds: float = 10) -> None:
        self._pattern = _compiled(unicode_text(_KIND, "pattern", pattern))
        self._replacement = unicode_text(_KIND, "replacement", replacement)
        self._seconds = _checked_seconds(seconds)
        try:
            # a replacement is read only once something is found, as an empty alternative is
            _compiled(f"|{pattern}").sub(self._replacement, "")
        except _BAD as error:
            msg = f"replacement of transform '{_KIND}' does not fit the pattern {pattern!r}: {error} in {replacement!r}"
            raise ConfigurationError(msg) from error

    @override
    def __call__(self, text: str) -> str | None:
        limit = 1.25 * self._seconds
        while True:
            began = time.thread_time()
            try:
                replaced: str = self._pattern.sub(self._replacement, text, timeout=limit)
            except TimeoutError:
                # the limit counts what all threads of the process took together, of which ours may be a small share
                if time.thread_time() - began >= self._seconds:
                    raise TimeoutError(self._too_long()) from None
            else:
                return replaced
            limit *= 2

    def _too_long(self) -> str:
        shown = self._pattern.pattern[:_SHOWN_CHARACTERS]
        return (
            f"the pattern {shown!r} takes more than {self._seconds:g} seconds of a processor core: "
            "avoid repetition within repetition, or raise seconds"
        )

    @override
    def fingerprint(self) -> str:
        options = {"pattern": self._pattern.pattern, "replacement": self._replacement, "seconds": self._seconds}
        return fingerprint_of(_KIND, _VERSION, **options, characters=_known_characters())


def _compiled(pattern: str) -> Any:
    try:
        return regex.compile(pattern, regex.VERSION0)
    except (*_BAD, KeyError) as error:
        # older releases of regex raise a bare KeyError for a pattern that asks for the other version of its syntax
        why = "VERSION0 and VERSION1 flags are mutually incompatible" if isinstance(error, KeyError) else error
        msg = f"pattern of transform '{_KIND}' is not a regular expression that regex accepts: {why} in {pattern!r}"
        raise ConfigurationError(msg) from error


def _checked_seconds(seconds: object) -> float:
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= _MOST_SECONDS:
        return float(seconds)
    msg = f"seconds of transform '{_KIND}' must be a number above 0 and at most {_MOST_SECONDS}, not {seconds!r}"
    raise ConfigurationError(msg)


@cache
def _known_characters() -> int:
    # each Unicode version adds some, and regex does not tell which one its tables are
    everything = "".join(map(chr, chain(range(0xD800), range(0xE000, 0x110000))))
    return len(regex.sub(r"\p{Unassigned}+", "", everything))
