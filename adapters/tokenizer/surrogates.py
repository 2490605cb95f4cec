"""Checks for text that UTF-8 cannot encode."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SURROGATE = re.compile("[\ud800-\udfff]")


def check_surrogates(documents: Sequence[str]) -> None:
    """Raise ``DataError`` for the first document with half of a surrogate pair, which UTF-8 cannot encode."""
    for index, document in enumerate(documents):
        if found := _SURROGATE.search(document):
            msg = (
                f"document {index} of those to encode holds half of a surrogate pair (\\u{ord(found[0]):04x}) at "
                f"character {found.start()}, which is not valid Unicode: repair the document"
            )
            raise DataError(msg)
