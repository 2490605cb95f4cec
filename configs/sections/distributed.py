"""The processes that train together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from holdfast.configs.sections.base import PLUGIN, PluginSettings, Positive, Section, by_kind


class SingleSettings(Section):
    """One process."""

    kind: Literal["single"] = Field(default="single", description="This process only.")


class _SeveralSettings(Section):
    timeout_seconds: Positive = Field(
        default=1800,
        description="Seconds of silence after which a process is considered lost; must exceed the time of a save or "
        "an evaluation.",
    )


class AutoDistributedSettings(_SeveralSettings):
    """The processes that a launcher started, or that this command starts itself."""

    kind: Literal["auto"] = Field(
        default="auto",
        description="The processes that a launcher such as torchrun started; without a launcher, as many as "
        "distributed.processes says.",
    )
    processes: Positive | Literal["auto"] = Field(
        default="auto",
        description="Number of processes that this command starts on this machine if no launcher did; auto starts one "
        "per GPU.",
    )


class TorchDistributedSettings(_SeveralSettings):
    """The processes that torchrun started."""

    kind: Literal["torch"] = Field(
        default="torch", description="The processes that torchrun started; this command starts none itself."
    )


DistributedSettings = Annotated[
    Annotated[AutoDistributedSettings, Tag("auto")]
    | Annotated[SingleSettings, Tag("single")]
    | Annotated[TorchDistributedSettings, Tag("torch")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind("auto", "single", "torch"),
]
