"""Stores of checkpoints, and their retention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

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


Size = Annotated[str, Field(strict=True), BeforeValidator(_size, json_schema_input_type=str | float)]
Newest = Annotated[Positive, Field(description="Number of the newest checkpoints to keep, at least 1.")]
EverySteps = Annotated[
    Natural,
    Field(description="Keep every checkpoint whose step is a multiple of this for ever; 0 disables it."),
]
EveryHours = Annotated[
    Number,
    Field(ge=0, description="Keep the first checkpoint of every window of this many hours for ever; 0 disables it."),
]
Best = Annotated[
    Natural,
    Field(description="Number of checkpoints with the lowest evaluation loss to keep as well; 0 disables it."),
]


class EncryptionSettings(KeySettings):
    """Encryption of checkpoints at rest; MANIFEST.json, metrics and events are not encrypted."""

    scratch: Folder = Field(
        default=Path("/dev/shm"),  # noqa: S108  memory, not a disk
        description="A folder in memory into which checkpoints are decrypted for reading.",
    )


AUTO_STEPS = 100
"""The steps between two checkpoints with ``every=auto``, beside those by time; a roll-back goes to one of these."""


class RetentionSettings(Section):
    """Settings that all state stores share: frequency of saves, and retention."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    every: Natural | Literal["auto"] = Field(
        default="auto",
        description="Steps between two checkpoints; 0 saves only at the end of the run and on request. auto saves each "
        f"{AUTO_STEPS} steps and by time: each 10 seconds at first, each 10 minutes of a long run, less often where "
        "saves are expensive.",
    )
    background: Flag = Field(
        default=True,
        description="Whether training continues while a captured checkpoint is hashed and written; it waits "
        "nevertheless if host memory is nearly full.",
    )
    memory_tier: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether the last captured state stays in host memory for fast roll-backs; auto keeps it while "
        "there is enough memory, and never with several processes.",
    )
    scrub_every: Natural = Field(
        default=10,
        description="Number of saves after which an older checkpoint is verified in the background; 0 disables it.",
    )
    keep: Newest = 3
    keep_every: EverySteps = 0
    keep_hours: EveryHours = 0.0
    keep_best: Best = 0

    @property
    def every_steps(self) -> int:
        """Return the steps between two checkpoints to which a run may roll back, 0 if no step is one."""
        return AUTO_STEPS if self.every == "auto" else self.every


class ArchiveSettings(Section):
    """Copies of checkpoints in a place that outlives the machine, made in the background."""

    url: Text = Field(description="Location such as s3://bucket/runs, in which each run has a folder of its name.")
    keep: Newest = 3
    keep_every: EverySteps = 0
    keep_hours: EveryHours = 0.0
    keep_best: Best = 0
    restored_copy_hours: Annotated[Number, Field(ge=0)] = Field(
        default=24.0,
        description="Minimum hours for which a checkpoint fetched from the archive stays on the disk while the run "
        "continues.",
    )
    patience_seconds: Annotated[Number, Field(gt=0)] = Field(
        default=60.0,
        description="Seconds for which the end of a run waits for the last copy; a copy that is not finished is made "
        "at the next start.",
    )


class DiskStateStoreSettings(RetentionSettings):
    """Checkpoints in the run folder."""

    kind: Literal["disk"] = Field(default="disk", description="The run folder.")
    encryption: EncryptionSettings | None = Field(
        default=None, description="Encryption of checkpoints; null stores them unencrypted."
    )
    archive: ArchiveSettings | None = Field(
        default=None, description="Archive for copies of checkpoints; null makes no copies."
    )
    disk_budget: Size | None = Field(
        default=None,
        description="Maximum size of all checkpoints on the disk, such as 20GiB; the oldest that are in the archive "
        "are removed first; null sets no limit.",
    )
    audit: Flag = Field(
        default=True, description="Whether audit.jsonl records, in a chain of hashes, what happened to each checkpoint."
    )
    roles: tuple[Literal["read", "write", "delete", "key"], ...] = Field(
        default=("read", "write", "delete", "key"),
        description="Operations that this process may perform on checkpoints.",
    )

    @model_validator(mode="after")
    def _has_an_archive(self) -> Self:
        if self.disk_budget is not None and self.archive is None:
            msg = "has a disk_budget but no archive for checkpoints that leave the disk: set archive.url, or lower keep"
            raise ValueError(msg)
        return self


class MemoryStateStoreSettings(RetentionSettings):
    """Checkpoints in the memory of the process; they are lost when the process ends."""

    encryption: ClassVar[EncryptionSettings | None] = None
    archive: ClassVar[ArchiveSettings | None] = None
    audit: ClassVar[bool] = False
    roles: ClassVar[tuple[str, ...]] = ("read", "write", "delete", "key")

    kind: Literal["memory"] = Field(
        default="memory", description="The memory of this process; nothing remains after its end."
    )


class PluginStateStoreSettings(RetentionSettings):
    """A state store that is not built in."""

    encryption: ClassVar[EncryptionSettings | None] = None
    archive: ClassVar[ArchiveSettings | None] = None
    audit: ClassVar[bool] = False
    roles: ClassVar[tuple[str, ...]] = ("read", "write", "delete", "key")

    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of the outside adapter's constructor.")


StateStoreSettings = Annotated[
    Annotated[DiskStateStoreSettings, Tag("disk")]
    | Annotated[MemoryStateStoreSettings, Tag("memory")]
    | Annotated[PluginStateStoreSettings, Tag(PLUGIN)],
    by_kind("disk", "memory"),
]
