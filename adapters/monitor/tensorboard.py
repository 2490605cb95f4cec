"""Writes figures for TensorBoard."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn, final

from typing_extensions import override

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch.utils.tensorboard import SummaryWriter

_FLUSH_SECONDS = 10
_UNBOUNDED = 0


@final
class TensorboardMonitor(Monitor):
    """Writes scalars into event files in ``folder``, which TensorBoard shows while they grow, as float32.

    A thread of the library writes them: ``record`` only queues, and a slow disk only makes the queue grow. The file is
    flushed every ten seconds and by ``close``, which waits for the disk. ``rewind`` writes a mark that makes
    TensorBoard hide the later steps; their bytes stay.
    Raises ``ConfigurationError`` without the extra ``tensorboard``, and ``StateError`` if the disk refused figures.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import torch.utils.tensorboard  # noqa: F401  it needs a package that is an extra of this one
        except ImportError as error:
            msg = 'the monitor "tensorboard" needs another package: pip install "holdfast-lm[tensorboard]"'
            raise ConfigurationError(msg) from error
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._closed = False

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._closed:
            return
        try:
            self._writer = self._writer or self._open(None)
            for name, value in metrics.items():
                self._writer.add_scalar(name, float(value), step)
        except OSError as error:
            self._raise_write_error(error)

    @override
    def rewind(self, step: int) -> None:
        if self._closed:
            return
        try:
            if self._writer is not None:
                self._writer.close()
            self._writer = self._open(step + 1 if step else 0)
        except OSError as error:
            self._raise_write_error(error)

    @override
    def close(self) -> None:
        self._closed = True
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except OSError as error:
            self._raise_write_error(error)

    def _open(self, purge_step: int | None) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        _wait_for_a_later_name(self._folder)
        return SummaryWriter(str(self._folder), purge_step=purge_step, max_queue=_UNBOUNDED, flush_secs=_FLUSH_SECONDS)

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
