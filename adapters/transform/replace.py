"""Text put in the place of what a regular expression finds."""

from __future__ import annotations

import re
import unicodedata
from typing import final

from typing_extensions import override

from adapters.transform.options import fingerprint_of, unicode_text
from domain.errors import ConfigurationError
from ports.transform import Transform

_KIND = "replace"
_VERSION = 1


@final
class ReplaceTransform(Transform):
    r"""Puts ``replacement`` in the place of all that ``pattern`` finds, as Python's ``re.sub`` does.

    Both are compiled here, and ``ConfigurationError`` is raised if one cannot be. How long a search takes is up to the
    pattern: repetition within repetition, as in ``(a+)+b``, can take for ever. ``\w`` and the like go by Python's
    Unicode tables, so that another Unicode version is another fingerprint.
    """

    def __init__(self, *, pattern: str, replacement: str) -> None:
        self._pattern = _compiled(unicode_text(_KIND, "pattern", pattern))
        self._replacement = unicode_text(_KIND, "replacement", replacement)
        try:
            self._pattern.sub(self._replacement, "")  # reads the replacement, whatever is found
        except (re.error, IndexError) as error:
            msg = f"replacement of transform '{_KIND}' does not fit the pattern {pattern!r}: {error} in {replacement!r}"
            raise ConfigurationError(msg) from error

    @override
    def __call__(self, text: str) -> str | None:
        return self._pattern.sub(self._replacement, text)

    @override
    def fingerprint(self) -> str:
        options = {"pattern": self._pattern.pattern, "replacement": self._replacement}
        return fingerprint_of(_KIND, _VERSION, **options, unicode=unicodedata.unidata_version)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        msg = f"pattern of transform '{_KIND}' is no regular expression that Python takes: {error} in {pattern!r}"
        raise ConfigurationError(msg) from error
