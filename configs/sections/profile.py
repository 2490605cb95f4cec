"""Profiling of some steps."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from holdfast.configs.sections.base import Folder, Section

_STEPS = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


class ProfileSettings(Section):
    """The steps to profile, and the folder of the result."""

    steps: str | None = Field(
        default=None,
        description="Steps to profile, such as 10:20 for steps 10 to 19; null means none.",
    )
    dir: Folder | None = Field(default=None, description="Folder of the profile; null means profile in the run folder.")

    @field_validator("steps")
    @classmethod
    def _is_a_range(cls, steps: str | None) -> str | None:
        if steps is None:
            return None
        found = _STEPS.fullmatch(steps)
        if found is None or not 1 <= int(found[1]) < int(found[2]):
            msg = f"is {steps}: it must be FIRST:END, such as 10:20, with FIRST from 1 and END above it"
            raise ValueError(msg)
        return steps

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Return the first profiled step and the first step after the last, None if no step is profiled."""
        if self.steps is None:
            return None
        first, end = self.steps.split(":")
        return int(first), int(end)
