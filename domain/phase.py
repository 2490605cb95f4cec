"""Reports of the activity of a run between steps."""

from __future__ import annotations

from typing import Protocol


class ShowPhase(Protocol):
    """Shows a person the current phase; an empty name ends it."""

    def __call__(self, phase: str, share: float | None = None, /) -> object:
        """Show ``phase``, and the fraction of it that is done if that is known."""
        ...


def show_nothing(_phase: str, _share: float | None = None, /) -> None:
    """Show no phase."""
