"""Writes metrics and texts for TensorBoard."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NoReturn, final

from typing_extensions import override

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import Tracker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch.utils.tensorboard import SummaryWriter

    from holdfast.ports.monitor import EndState, NoteKind, RunDescription

_FLUSH_SECONDS = 10
_UNBOUNDED = 0


@final
class TensorboardTracker(Tracker):
    """Writes scalars, as float32, and texts into event files in ``folder``, which TensorBoard shows while they grow.

    A thread of the library writes them: a call only adds to a queue, which grows if the disk is slow. The file is
    flushed every ten seconds, by ``flush`` and by ``close``, which wait for the disk. ``rewind`` writes a mark that
    makes TensorBoard hide later steps and their texts; their bytes stay. The texts are ``run`` (the description of the
    run, at the first step of each start), ``event``, ``sample`` and ``end``. Raises ``ConfigurationError`` without the
    extra ``tensorboard``, and ``StateError`` if the disk refused metrics.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import torch.utils.tensorboard  # noqa: F401  it needs a package that is an extra of this one
        except ImportError as error:
            msg = 'the monitor "tensorboard" needs another package: pip install "holdfast-lm[tensorboard]"'
            raise ConfigurationError(msg) from error
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._description = ""
        self._step = 0
        self._closed = False

    @override
    def begin(self, run: RunDescription) -> None:
        description = {
            "name": run.name,
            "run": run.run_id,
            "ranks": run.num_ranks,
            "data": run.data,
            "environment": run.environment,
            "settings": run.settings,
        }
        self._description = _as_code(json.dumps(description, indent=2, ensure_ascii=False, default=str))

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._closed:
            return
        try:
            writer = self._open()
            for name, value in metrics.items():
                writer.add_scalar(name, float(value), step)
        except OSError as error:
            self._raise_write_error(error)
        self._step = step

    @override
    def note(self, step: int, kind: NoteKind, text: str) -> None:
        self._write_text(kind, _as_code(text), step)

    @override
    def rewind(self, step: int) -> None:
        if self._closed:
            return
        try:
            if self._writer is not None:
                self._writer.close()
            self._writer = None
            self._step = step
            self._open(step + 1 if step else 0)
        except OSError as error:
            self._raise_write_error(error)

    @override
    def flush(self) -> None:
        try:
            if self._writer is not None:
                self._writer.flush()
        except OSError as error:
            self._raise_write_error(error)

    @override
    def finish(self, state: EndState) -> None:
        self._write_text("end", state, self._step)

    @override
    def close(self) -> None:
        self._closed = True
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except OSError as error:
            self._raise_write_error(error)

    def _write_text(self, name: str, text: str, step: int) -> None:
        if self._closed or not text:
            return
        try:
            self._open().add_text(name, text, step)
        except OSError as error:
            self._raise_write_error(error)

    def _open(self, purge_step: int | None = None) -> SummaryWriter:
        """Return the open file; a new one begins with the description of the run, which a mark would hide."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            _wait_for_a_later_name(self._folder)
            self._writer = SummaryWriter(
                str(self._folder), purge_step=purge_step, max_queue=_UNBOUNDED, flush_secs=_FLUSH_SECONDS
            )
            if self._description:
                self._writer.add_text("run", self._description, purge_step or self._step)
        return self._writer

    def _raise_write_error(self, error: OSError) -> NoReturn:
        self._writer = None
        msg = f"figures cannot be written to {self._folder}, {explain(error)}"
        raise StateError(msg) from error


def _wait_for_a_later_name(folder: Path) -> None:
    # Files are read in the order of their names, which start with the second of their creation: a mark must not be
    # read before the steps that it hides.
    now = time.time()
    if any(folder.glob(f"events.out.tfevents.{int(now):010d}.*")):
        time.sleep(int(now) + 1 - now)


def _as_code(text: str) -> str:
    # TensorBoard shows Markdown: an indented block is shown as it is
    return ("    " + text.replace("\n", "\n    ")).encode("utf-8", "replace").decode()
