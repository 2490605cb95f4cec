"""Name, folder, seed and length of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, Tag, field_validator

from holdfast.configs.sections.base import (
    PLUGIN,
    Flag,
    Folder,
    Number,
    PluginSettings,
    Positive,
    Section,
    Seed,
    by_kind,
)
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded


class BudgetSettings(Section):
    """Length of the training; the first limit that is reached ends the run."""

    steps: Positive | None = Field(
        default=None,
        description="Optimizer steps to train for; null sets no limit. Without any limit and without data.epochs they "
        "are 350, and 150 on the Python standard library.",
    )
    tokens: Positive | None = Field(default=None, description="Tokens to train on; null sets no limit.")
    minutes: Annotated[Number, Field(gt=0)] | None = Field(
        default=None,
        description="Minutes from the start of the process to the end of the run. Before its first step the run "
        "measures the time of a step and decides how many fit; a resume with the same minutes keeps that number, and "
        "other minutes count from the start that has them. Null sets no limit.",
    )

    def without_minutes(self, steps: int) -> BudgetSettings:
        """Return the budget without its minutes, for a trial; of ``steps``, if they are its only limit."""
        is_timed_only = self.steps is None and self.tokens is None
        return self.model_copy(update={"minutes": None, "steps": steps if is_timed_only else self.steps})

    @property
    def has_limit(self) -> bool:
        """Return whether any of steps, tokens and minutes is set."""
        return not (self.steps is None and self.tokens is None and self.minutes is None)


class RunSettings(Section):
    """Name, folder, seed and length of a run."""

    name: str = Field(
        default="default",
        max_length=128,
        description="Name of the run: letters, digits and . _ - only. If neither it nor run.dir nor an archive is "
        "set, the name is made of the data or the model and a hash of the settings that a resume must not "
        "change; the quickstart is called default.",
    )
    dir: Folder | None = Field(default=None, description="Folder of the run; null means runs/<name>.")
    seed: Seed = Field(
        default=1234,
        description="Seed of the initial weights, the order of the data and dropout, from 0 to 4294967295.",
    )
    budget: BudgetSettings = Field(
        default_factory=lambda: BudgetSettings(steps=350),
        description="Length of the training.",
    )
    deterministic: Flag = Field(
        default=True, description="Whether to use deterministic operations of torch where they exist."
    )
    report: Flag = Field(
        default=True, description="Whether to write report.html into the folder of the run when a start ends."
    )
    cache_dir: Folder | None = Field(
        default=None,
        description="Folder of cached tokenizers and tokens; null means $XDG_CACHE_HOME/holdfast or ~/.cache/holdfast.",
    )

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str) -> str:
        letters = name.replace(".", "").replace("_", "").replace("-", "")
        if not (letters.isascii() and letters.isalnum()) or name[0] in ".-":
            msg = "may hold letters, digits and . _ - only, needs a letter or digit and must not begin with . or -"
            raise ValueError(msg)
        return name

    @property
    def directory(self) -> Path:
        """Return the folder of the run."""
        return Path("runs") / self.name if self.dir is None else expanded(self.dir)

    @property
    def shown_name(self) -> str:
        """Return the name of the run for people: that of its folder if a folder was chosen and no name."""
        is_unnamed = self.name == RunSettings.model_fields["name"].default
        folder = "" if self.dir is None else self.directory.resolve().name
        return folder[:128] if folder and is_unnamed else self.name

    @property
    def cache_directory(self) -> Path:
        """Return the folder of cached tokenizers and tokens. Raises ``ConfigurationError`` without a home folder."""
        if self.cache_dir is not None:
            return expanded(self.cache_dir)
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if base.is_absolute():
            return base / "holdfast"
        try:
            return Path.home() / ".cache" / "holdfast"
        except RuntimeError:
            msg = "run.cache_dir is not set and this user has no home folder: set run.cache_dir"
            raise ConfigurationError(msg) from None


def with_default_budget(run: RunSettings, epochs: int | None) -> RunSettings:
    """Return ``run`` without the default number of steps if the ``epochs`` of its data set its length."""
    if epochs is None or "budget" in run.model_fields_set:
        return run
    return run.model_copy(update={"budget": BudgetSettings(steps=None)})


class BlinkerEventBusSettings(Section):
    """Events over blinker's signals."""

    kind: Literal["blinker"] = Field(default="blinker", description="Signals of the library blinker.")


class MemoryEventBusSettings(Section):
    """Another name of kind ``blinker``, for settings that have it."""

    kind: Literal["memory"] = Field(default="memory", description="The same as blinker.")


EventBusSettings = Annotated[
    Annotated[BlinkerEventBusSettings, Tag("blinker")]
    | Annotated[MemoryEventBusSettings, Tag("memory")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind("blinker", "memory"),
]
