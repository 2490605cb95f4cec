"""The kinds of corruption of a stored checkpoint."""

from __future__ import annotations

from enum import StrEnum


class CorruptionKind(StrEnum):
    """The kinds of defects, as they appear in the names of quarantined folders."""

    BAD_COMMIT = "bad-commit"
    BAD_MANIFEST = "bad-manifest"
    EXTRA_FILE = "extra-file"
    INCOMPLETE = "incomplete"
    IRREGULAR_FILE = "irregular-file"
    MISSING_FILE = "missing-file"
    NOT_A_FOLDER = "not-a-folder"
    NOT_FINITE = "not-finite"
    WRONG_HASH = "wrong-hash"
    WRONG_NAME = "wrong-name"
    WRONG_SIZE = "wrong-size"


class CorruptCheckpoint(Exception):
    """A checkpoint differs from what was saved; the message has the kind of flaw and a clause with its place."""

    def __init__(self, kind: CorruptionKind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
