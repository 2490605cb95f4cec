"""The event bus."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from holdfast.configs.sections.base import PLUGIN, PluginSettings, Section, by_kind


class BlinkerEventBusSettings(Section):
    """Events over blinker's signals."""

    kind: Literal["blinker"] = Field(default="blinker", description="Signals of the library blinker.")


class MemoryEventBusSettings(Section):
    """Events over plain function calls."""

    kind: Literal["memory"] = Field(default="memory", description="Plain function calls.")


EventBusSettings = Annotated[
    Annotated[BlinkerEventBusSettings, Tag("blinker")]
    | Annotated[MemoryEventBusSettings, Tag("memory")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind("blinker", "memory"),
]
