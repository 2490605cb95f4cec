"""Events about the datasets that a job reads and writes, in the terms of OpenLineage."""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Sequence


class JobState(StrEnum):
    """The state that a job enters."""

    START = "START"
    COMPLETE = "COMPLETE"
    ABORT = "ABORT"
    FAIL = "FAIL"


@final
@dataclass(frozen=True, slots=True)
class LineageDataset:
    """A dataset by its ``namespace`` and ``name``, and what is known about it.

    ``records`` is the number of its records or documents, ``num_bytes`` its size in bytes, ``files`` the number of its
    files, and ``fields`` are the names and types of its columns.
    """

    namespace: str
    name: str
    version: str | None = None
    records: int | None = None
    num_bytes: int | None = None
    files: int | None = None
    fields: Sequence[tuple[str, str]] = ()


@final
@dataclass(frozen=True, slots=True)
class LineageEvent:
    """The change of a job to ``state``; ``run_id`` is a UUID, the same for all events of one execution of the job."""

    state: JobState
    job: str
    run_id: str
    time: datetime
    inputs: Sequence[LineageDataset]
    outputs: Sequence[LineageDataset]
    error: str | None = None


@final
class JobExecution:
    """One execution of ``job``, which makes its events; all have the same id."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._run_id = str(uuid4())

    def event(
        self,
        state: JobState,
        inputs: Sequence[LineageDataset],
        outputs: Sequence[LineageDataset],
        error: str | None = None,
    ) -> LineageEvent:
        """Return the event that the job has entered ``state`` now."""
        return LineageEvent(state, self._job, self._run_id, datetime.now(UTC), inputs, outputs, error)


def dataset_names(place: str) -> tuple[str, str]:
    """Return the namespace and the name of the dataset at ``place``, a path or a URL, without secrets.

    The names follow OpenLineage's conventions: ``file`` and an absolute path, or ``s3://bucket`` and a key. User names,
    passwords and parameters of a URL are left out.
    """
    if "://" not in place:
        return "file", os.path.abspath(place)  # noqa: PTH100  a name, which may be a pattern
    scheme, _, rest = place.partition("://")
    parts = urlsplit(f"//{rest.rpartition('@')[2]}")
    return f"{scheme}://{parts.netloc}", parts.path.lstrip("/") or "/"
