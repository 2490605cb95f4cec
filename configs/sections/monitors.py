"""Destinations of metrics, and event handlers and wrappers from other packages."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, Tag, field_validator, model_validator

from holdfast.configs.sections.base import (
    PLUGIN,
    Dsn,
    Folder,
    Natural,
    PluginSettings,
    Section,
    Text,
    TokenPlace,
    by_kind,
)
from holdfast.domain.urls import is_loopback


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


class MlflowMonitorSettings(Section):
    """Metrics, settings and events as a run of MLflow."""

    kind: Literal["mlflow"] = Field(default="mlflow", description="MLflow.")
    tracking_uri: Text | None = Field(
        default=None,
        description="Address of an MLflow server or database. `null` takes the environment variable "
        "MLFLOW_TRACKING_URI, or the file mlflow.db beside the run folder if there is none.",
    )
    experiment: Text = Field(default="holdfast", description="Experiment of MLflow that the run belongs to.")


class StructlogMonitorSettings(Section):
    """Metrics as structured log lines."""

    kind: Literal["structlog"] = Field(default="structlog", description="Structured log lines.")


class WandbMonitorSettings(Section):
    """Metrics and texts in Weights & Biases. The key is that of the library: WANDB_API_KEY, or its login."""

    kind: Literal["wandb"] = Field(default="wandb", description="Weights & Biases (W&B).")
    project: Text = Field(default="holdfast", description="Project of the run.")
    entity: Text | None = Field(default=None, description="User or team of the project; null means the key's default.")
    mode: Literal["online", "offline"] = Field(
        default="online",
        description="online sends the metrics to a server; offline stores them in the run folder, for wandb sync.",
    )
    base_url: Text | None = Field(
        default=None, description="URL of the server; null means that of the library's settings, W&B's own by default."
    )
    group: Text | None = Field(
        default=None, description="Group of the run's runs in W&B; null means the id of the run."
    )
    tags: list[Text] = Field(default_factory=list, description="Tags of the run.")


class TrackioMonitorSettings(Section):
    """Metrics and texts in a SQLite file that trackio shows."""

    kind: Literal["trackio"] = Field(default="trackio", description="trackio, a local tracker.")
    project: Text = Field(default="holdfast", description="Project of the run; each project is one file.")
    dir: Folder | None = Field(
        default=None, description="Folder of the projects; null means trackio's own: TRACKIO_DIR, or in its cache."
    )
    space_id: Text | None = Field(
        default=None,
        description="Space on the Hugging Face Hub that gets a copy at the end of the run; null means none.",
    )


class PrometheusMonitorSettings(Section):
    """Metrics for a server of Prometheus."""

    kind: Literal["prometheus"] = Field(default="prometheus", description="An endpoint or a file for Prometheus.")
    host: Text = Field(
        default="127.0.0.1",
        description="Address of the endpoint; the default is reachable from this machine only.",
    )
    port: Annotated[Natural, Field(le=65535)] | None = Field(
        default=19100, description="Port of the endpoint: 0 is any free port, `null` is no endpoint."
    )
    textfile: Folder | None = Field(
        default=None,
        description="File for node_exporter's textfile collector, whose name ends with .prom; each run needs its own.",
    )

    @model_validator(mode="after")
    def _has_a_way_out(self) -> Self:
        if self.port is None and self.textfile is None:
            msg = "needs a port or a textfile"
            raise ValueError(msg)
        return self


class SqliteMonitorSettings(Section):
    """Metrics in a SQLite file."""

    kind: Literal["sqlite"] = Field(default="sqlite", description="A SQLite file, which several runs may share.")
    path: Folder | None = Field(default=None, description="The file. `null` is metrics.sqlite in the run folder.")


class PostgresMonitorSettings(Section):
    """Metrics on a PostgreSQL server, which many runs may share."""

    kind: Literal["postgres"] = Field(default="postgres", description="A database on a PostgreSQL server.")
    dsn: Dsn = Field(
        description="Connection string such as postgresql://user@host:5432/database, or env:NAME for a variable with "
        "it, which keeps a password out of the settings; it may be the database of the ledger."
    )


class PageMonitorSettings(Section):
    """A live page of the run in the browser."""

    kind: Literal["page"] = Field(default="page", description="A live page in the browser.")
    host: Text = Field(
        default="127.0.0.1", description="Address to listen at; one that other machines reach needs a token."
    )
    port: Annotated[Natural, Field(le=65535)] | None = Field(
        default=None, description="Port; 0 for any free one, null for 8473, or any free one if that is taken."
    )
    token_from: TokenPlace | None = Field(
        default=None, description="Place of the token that each request needs: env:NAME or file:PATH; null for none."
    )

    @model_validator(mode="after")
    def _has_token_where_needed(self) -> Self:
        if self.token_from is None and not is_loopback(self.host):
            msg = f"host {self.host} can be reached by other machines: set token_from, or leave the host at 127.0.0.1"
            raise ValueError(msg)
        return self


def _named(monitor: object) -> object:
    return {"kind": monitor} if isinstance(monitor, str) else monitor


class WrapperSettings(PluginSettings):
    """A wrapper of a part: an entry point that is called with the part and the options, and returns what is used."""

    part: Literal[
        "data_source", "tokenizer", "model_factory", "optimizer", "state_store", "event_bus", "process_group"
    ] = Field(description="The part that is wrapped.")


HandlerSettings = Annotated[PluginSettings, BeforeValidator(_named, json_schema_input_type=Text | PluginSettings)]
_Monitor = Annotated[
    Annotated[ConsoleMonitorSettings, Tag("console")]
    | Annotated[JsonlMonitorSettings, Tag("jsonl")]
    | Annotated[TensorboardMonitorSettings, Tag("tensorboard")]
    | Annotated[StructlogMonitorSettings, Tag("structlog")]
    | Annotated[MlflowMonitorSettings, Tag("mlflow")]
    | Annotated[WandbMonitorSettings, Tag("wandb")]
    | Annotated[TrackioMonitorSettings, Tag("trackio")]
    | Annotated[PrometheusMonitorSettings, Tag("prometheus")]
    | Annotated[SqliteMonitorSettings, Tag("sqlite")]
    | Annotated[PostgresMonitorSettings, Tag("postgres")]
    | Annotated[PageMonitorSettings, Tag("page")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind(
        "console",
        "jsonl",
        "tensorboard",
        "structlog",
        "mlflow",
        "wandb",
        "trackio",
        "prometheus",
        "sqlite",
        "postgres",
        "page",
    ),
]
MonitorSettings = Annotated[_Monitor, BeforeValidator(_named, json_schema_input_type=Text | _Monitor)]


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
        match = _STEPS.fullmatch(steps)
        if match is None or not 1 <= int(match[1]) < int(match[2]):
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
