"""Where checkpoints are kept, and how many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, Tag, model_validator

from holdfast.configs.sections.base import (
    PLUGIN,
    Flag,
    Folder,
    KeySettings,
    Natural,
    Number,
    Positive,
    Section,
    Text,
    by_kind,
)
from holdfast.domain.sizes import size_in_bytes


def _size(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value:.0f}"
    if isinstance(value, str):
        size_in_bytes(value)
    return value


Size = Annotated[str, Field(strict=True), BeforeValidator(_size)]
Newest = Annotated[Positive, Field(description="Newest checkpoints that are kept, at least 1.")]
EverySteps = Annotated[
    Natural,
    Field(description="Steps of which checkpoints at each multiple are kept for ever; 0 keeps none for that."),
]
EveryHours = Annotated[
    Number,
    Field(ge=0, description="Hours of which the first checkpoint of each is kept for ever; 0 keeps none for that."),
]
Best = Annotated[
    Natural,
    Field(description="Checkpoints with the lowest evaluation loss that are kept too; 0 keeps none for that."),
]


class EncryptionSettings(KeySettings):
    """Encryption of checkpoints at rest; MANIFEST.json, metrics and events are not encrypted."""

    scratch: Folder = Field(
        default=Path("/dev/shm"),  # noqa: S108  memory, not a disk
        description="A file system in memory, into which checkpoints are decrypted to be read.",
    )


class RetentionSettings(Section):
    """What every state store shares: how often is saved and how much is kept."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    every: Natural = Field(
        default=100, description="Steps between two checkpoints; 0 saves only when the run ends or is asked to."
    )
    background: Flag = Field(
        default=True,
        description="Whether training goes on while a captured checkpoint is hashed and written; where host memory is "
        "nearly full it waits all the same.",
    )
    memory_tier: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether the last captured state stays in host memory, from where a roll-back takes it: auto keeps "
        "it while there is room, and never with several processes.",
    )
    scrub_every: Natural = Field(
        default=10, description="Saves after each of which an older checkpoint is verified beside training; 0 never."
    )
    keep: Newest = 3
    keep_every: EverySteps = 0
    keep_hours: EveryHours = 0.0
    keep_best: Best = 0


class ArchiveSettings(Section):
    """Copies of checkpoints at a place that outlives the machine, made beside training."""

    url: Text = Field(description="Place such as s3://bucket/runs, where each run has a folder of its name.")
    keep: Newest = 3
    keep_every: EverySteps = 0
    keep_hours: EveryHours = 0.0
    keep_best: Best = 0
    restored_copy_hours: Annotated[Number, Field(ge=0)] = Field(
        default=24.0,
        description="Hours that a copy which was brought back to the disk stays there at least, while the run goes on.",
    )
    patience_seconds: Annotated[Number, Field(gt=0)] = Field(
        default=60.0, description="Seconds that the end of a run waits for the last copy; the next start makes it then."
    )


class DiskStateStoreSettings(RetentionSettings):
    """Checkpoints in the run's folder."""

    kind: Literal["disk"] = Field(default="disk", description="The folder of the run.")
    encryption: EncryptionSettings | None = Field(
        default=None, description="How checkpoints are encrypted; null leaves them as they are."
    )
    archive: ArchiveSettings | None = Field(default=None, description="Where copies go; null makes none.")
    disk_budget: Size | None = Field(
        default=None,
        description="What checkpoints may take of the disk, such as 20GiB: the oldest that are archived make room; "
        "null sets no such limit.",
    )
    audit: Flag = Field(
        default=True, description="Whether audit.jsonl tells, in a chain of hashes, what became of each checkpoint."
    )
    roles: tuple[Literal["read", "write", "delete", "key"], ...] = Field(
        default=("read", "write", "delete", "key"), description="What this process may do with checkpoints."
    )

    @model_validator(mode="after")
    def _has_an_archive(self) -> Self:
        if self.disk_budget is not None and self.archive is None:
            msg = "has a disk_budget but no archive for what leaves the disk: set archive.url, or lower keep"
            raise ValueError(msg)
        return self


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
