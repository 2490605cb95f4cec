"""The request of a run or a command to the stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.run_folder.record_file import Begun
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.bootstrap.adapter_choice.ports import Ports
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase

KeepChoice = Callable[[str, str, str], str]
"""Returns the value that was first chosen for an ``auto`` setting, from its name, the value now and the reason."""


@final
@dataclass(frozen=True, slots=True)
class Request:
    """The settings of a run in ``directory``, the ports that make its parts, and what it began with.

    ``report`` shows a line to a person, and ``show`` the current activity while no steps are taken. ``decide`` records
    a choice that was not made before; without it the choices are forgotten.
    """

    settings: TrainSettings
    directory: Path
    ports: Ports
    report: Callable[[str], object]
    show: ShowPhase = show_nothing
    begun: Begun = field(default_factory=Begun)
    decide: KeepChoice | None = None

    @property
    def keep_choice(self) -> KeepChoice:
        """Return what makes the choices for ``auto`` settings."""
        return self.decide or self.begun.keep
