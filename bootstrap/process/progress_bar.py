"""A progress bar of bytes for commands that read much data."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self, final

from holdfast.bootstrap.wiring.screen import phases_shown
from holdfast.domain.phase import Amount
from holdfast.domain.sizes import shown_size


@final
class ProgressBar:
    """Shows the bytes done, their rate and the time left on standard error, unless ``is_quiet``.

    Where there is no terminal, it prints a line after ten seconds and then once a minute.
    """

    def __init__(self, title: str, *, is_quiet: bool = False) -> None:
        self._title = title
        self._stack = ExitStack()
        self._phases = phases_shown(is_quiet=is_quiet)

    def __enter__(self) -> Self:
        self._show = self._stack.enter_context(self._phases)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes are done."""
        self._show(f"{self._title} {shown_size(total)}", Amount(done, total))
