"""Drops documents by length."""

from __future__ import annotations

from typing import final

from typing_extensions import override

from holdfast.adapters.transform.rule_options import fingerprint_of, whole_number
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Transform

_KIND = "length"
_VERSION = 1


@final
class LengthTransform(Transform):
    """Leaves out texts of fewer than ``min_characters`` or more than ``max_characters`` Unicode code points.

    Raises ``ConfigurationError`` if neither is given, or if no length lies between them.
    """

    def __init__(self, *, min_characters: int | None = None, max_characters: int | None = None) -> None:
        if min_characters is None and max_characters is None:
            msg = f"transform '{_KIND}' drops nothing: give it min_characters, max_characters or both"
            raise ConfigurationError(msg)
        self._least = 0 if min_characters is None else whole_number(_KIND, "min_characters", min_characters)
        self._most = None if max_characters is None else whole_number(_KIND, "max_characters", max_characters)
        if self._most is not None and self._most < self._least:
            msg = (
                f"transform '{_KIND}' drops everything: min_characters, now {self._least}, must be at most "
                f"max_characters, now {self._most}"
            )
            raise ConfigurationError(msg)

    @override
    def __call__(self, text: str) -> str | None:
        is_long_enough = len(text) >= self._least
        return text if is_long_enough and (self._most is None or len(text) <= self._most) else None

    @override
    def fingerprint(self) -> str:
        return fingerprint_of(_KIND, _VERSION, min_characters=self._least, max_characters=self._most)
