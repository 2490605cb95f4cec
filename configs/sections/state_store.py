"""Where checkpoints are kept, and how many."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from configs.sections.base import PLUGIN, Natural, Positive, Section, Text, by_kind


class RetentionSettings(Section):
    """What every state store shares: how often is saved and how much is kept."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    every: Natural = Field(
        default=100, description="Steps between two checkpoints; 0 saves only when the run ends or is asked to."
    )
    keep: Positive = Field(default=3, description="Newest checkpoints that are kept, at least 1.")
    keep_every: Natural = Field(
        default=0, description="Steps of which checkpoints at each multiple are kept for ever; 0 keeps none for that."
    )
    keep_best: Natural = Field(
        default=0, description="Checkpoints with the lowest evaluation loss that are kept too; 0 keeps none for that."
    )


class DiskStateStoreSettings(RetentionSettings):
    """Checkpoints in the run's folder."""

    kind: Literal["disk"] = Field(default="disk", description="The folder of the run.")


class MemoryStateStoreSettings(RetentionSettings):
    """Checkpoints that die with the process."""

    kind: Literal["memory"] = Field(default="memory", description="This process: nothing is kept after it ends.")


class PluginStateStoreSettings(RetentionSettings):
    """A state store that is not built in."""

    options: dict[str, Any] = Field(default_factory=dict, description="What the outside adapter is to be given.")


StateStoreSettings = Annotated[
    Annotated[DiskStateStoreSettings, Tag("disk")]
    | Annotated[MemoryStateStoreSettings, Tag("memory")]
    | Annotated[PluginStateStoreSettings, Tag(PLUGIN)],
    by_kind("disk", "memory"),
]
