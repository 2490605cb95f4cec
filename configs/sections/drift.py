"""The comparison of the data with an earlier version of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from holdfast.configs.sections.base import Positive, Section, Text


class DriftSettings(Section):
    """The version of the data to compare with, and the answer to a difference."""

    reference: Text = Field(
        description="The dataset to compare with: its folder in a token cache, or its name in the run's token cache.",
    )
    action: Literal["warn", "stop"] = Field(
        default="warn",
        description="Answer to drift: warn logs it; stop also ends the run with an error if the drift is major.",
    )
    every: Positive = Field(
        default=10000,
        description="Documents of a stream between two comparisons; cached data are compared once, at the start.",
    )
