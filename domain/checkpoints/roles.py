"""Rights of a process to the checkpoints of a run."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A separate right: reading does not imply writing, and writing does not imply deleting."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    KEY = "key"
    """Use of the key that encrypted checkpoints are wrapped by."""
