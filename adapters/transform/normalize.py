"""Unicode normalization: one spelling for texts that read the same."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Literal, final, get_args

from typing_extensions import override

from holdfast.adapters.transform.rule_options import fingerprint_of
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Transform

if TYPE_CHECKING:
    from typing import Any

_KIND = "normalize"
_VERSION = 1

Form = Literal["NFC", "NFKC"]


@final
class NormalizeTransform(Transform):
    r"""Writes characters in a normal ``form`` of Unicode, and line ends ``\r\n`` as ``\n``.

    NFC composes characters without a visible change; NFKC also replaces ligatures, width variants and superscripts, as
    in x², by plain characters. The tables are Python's own, so another Unicode version gives another fingerprint
    (Unicode Standard Annex 15). Raises ``ConfigurationError`` for another form.
    """

    def __init__(self, *, form: Form = "NFC") -> None:
        if form not in get_args(Form):
            chosen: Any = form
            msg = f"form of transform '{_KIND}' must be one of {', '.join(get_args(Form))}, not {chosen!r}"
            raise ConfigurationError(msg)
        self._form = form

    @override
    def __call__(self, text: str) -> str | None:
        return unicodedata.normalize(self._form, text).replace("\r\n", "\n")

    @override
    def fingerprint(self) -> str:
        return fingerprint_of(_KIND, _VERSION, form=self._form, unicode=unicodedata.unidata_version)
