"""Destinations of metrics, and event handlers from other packages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag

from holdfast.configs.sections.base import PLUGIN, PluginSettings, Section, by_kind


class ConsoleMonitorSettings(Section):
    """Metrics on the terminal."""

    kind: Literal["console"] = Field(default="console", description="The terminal.")


class JsonlMonitorSettings(Section):
    """Metrics as JSON lines in the run folder."""

    kind: Literal["jsonl"] = Field(default="jsonl", description="A file of JSON lines in the run folder.")


class TensorboardMonitorSettings(Section):
    """Metrics as TensorBoard events in the run folder."""

    kind: Literal["tensorboard"] = Field(
        default="tensorboard", description="TensorBoard event files in the run folder."
    )


class StructlogMonitorSettings(Section):
    """Metrics as structured log lines."""

    kind: Literal["structlog"] = Field(default="structlog", description="Structured log lines.")


def _named(monitor: object) -> object:
    return {"kind": monitor} if isinstance(monitor, str) else monitor


HandlerSettings = Annotated[PluginSettings, BeforeValidator(_named)]

MonitorSettings = Annotated[
    Annotated[ConsoleMonitorSettings, Tag("console")]
    | Annotated[JsonlMonitorSettings, Tag("jsonl")]
    | Annotated[TensorboardMonitorSettings, Tag("tensorboard")]
    | Annotated[StructlogMonitorSettings, Tag("structlog")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind("console", "jsonl", "tensorboard", "structlog"),
    BeforeValidator(_named),
]
