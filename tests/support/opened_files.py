"""The files that this process opens, for tests of how much is read."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lists: list[list[str]] = []


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Give a list to which the path of each file is added that any thread opens within the block."""
    if not _installed:
        sys.addaudithook(_hear)  # it stays until the process ends
        _installed.append(True)
    found: list[str] = []
    _lists.append(found)
    try:
        yield found
    finally:
        _lists.remove(found)


_installed: list[bool] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _lists and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        for each in _lists:
            each.append(os.fsdecode(arguments[0]))
