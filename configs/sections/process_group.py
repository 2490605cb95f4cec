"""Which processes train together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from configs.sections.base import PLUGIN, PluginSettings, Positive, Section, by_kind


class SingleProcessGroupSettings(Section):
    """One process."""

    kind: Literal["single"] = Field(default="single", description="This process alone.")


class TorchProcessGroupSettings(Section):
    """The processes that torchrun started."""

    kind: Literal["torch"] = Field(default="torch", description="The processes that torchrun started.")
    timeout_seconds: Positive = Field(
        default=1800, description="Seconds after which a silent process is given up; more than a save or evaluation."
    )


ProcessGroupSettings = Annotated[
    Annotated[SingleProcessGroupSettings, Tag("single")]
    | Annotated[TorchProcessGroupSettings, Tag("torch")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind("single", "torch"),
]
