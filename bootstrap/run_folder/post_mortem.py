"""The post-mortem of a failed run: a folder with the facts about the failure."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import sys
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

import psutil

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.bootstrap.run_folder.layout import RunLayout, environment
from holdfast.configs.rendering import dump_settings
from holdfast.configs.secret_masking import mask, mask_text
from holdfast.domain.errors import LeaveAtOnce, PluginFailed, TrainingError
from holdfast.domain.fault_tolerance.remedies import remedies_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.application.handlers.write_post_mortem import Failure
    from holdfast.configs.settings import TrainSettings

WHERE = "its traceback is in "
STAMP = "%Y%m%d-%H%M%S"
_LONGEST_TEXT = 100_000
_LONGEST_VALUE = 2_000


@final
@dataclass(frozen=True, slots=True)
class PostMortem:
    """Writes a rank's part of ``<run>/post-mortem/<attempt>/``; the newest ``keep`` attempts stay.

    ``attempt`` is the time at which this start of the run began, the same on all ranks. Secrets are masked.
    """

    run: Path
    attempt: str
    rank: int
    size: int
    settings: TrainSettings
    keep: int

    @property
    def folder(self) -> Path:
        """Return the folder of this rank."""
        return RunLayout(self.run).post_mortem / self.attempt / f"rank{self.rank}"

    def write(self, failure: Failure) -> Path:
        """Write the facts about ``failure``, the most informative first in case the disk is full; return the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_json("cause.json", self._cause(failure))
        _write_traceback(self.folder, failure.error)
        with closing(JsonLines(self.folder / "events.jsonl")) as lines:
            for event in failure.events:
                lines.append(_masked({key: _cut(value, _LONGEST_VALUE) for key, value in event.items()}))
        self._write_json("memory.json", failure.resources)
        self._write_json("batch.json", self._batch(failure))
        self._write_json("environment.json", environment())
        self._write_json("settings.json", dump_settings(self.settings))
        with (self.folder / "stacks.txt").open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        if self.rank == 0:
            for older in sorted(RunLayout(self.run).post_mortem.iterdir())[: -self.keep]:
                shutil.rmtree(older)
        return self.folder

    def _cause(self, failure: Failure) -> Mapping[str, Any]:
        error, progress = failure.error, failure.progress
        return {
            "error": type(error).__name__,
            "message": _cut(str(error), _LONGEST_VALUE),
            "rank": self.rank,
            "ranks": self.size,
            "step": progress.step,
            "tokens": progress.tokens,
            "saved_step": failure.saved,
            "what_to_try": remedies_for(error),
        }

    def _batch(self, failure: Failure) -> Mapping[str, Any]:
        """Return the numbers of the samples (rows) in the batch after the last complete step."""
        cursor, size = failure.progress.cursor, self.settings.optimizer.batch_size
        end = cursor.samples + size if isinstance(size, int) else None
        lanes = [lane._asdict() for lane in cursor.lanes]
        return {"step": failure.progress.step + 1, "first_sample": cursor.samples, "end": end, "lanes": lanes}

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(_masked(record), indent=1), encoding="ascii")


def write_before_training(run: Path, error: BaseException) -> Path | None:
    """Write the traceback of the error that ended a start of ``run`` before training, unless it is a user's mistake.

    Return the folder with it, None if there is none.
    """
    is_told = isinstance(error, TrainingError) and not isinstance(error, PluginFailed)
    if is_told or isinstance(error, KeyboardInterrupt | LeaveAtOnce):
        return None
    folder = RunLayout(run).post_mortem / datetime.now(UTC).strftime(STAMP) / "rank0"
    with suppress(OSError):  # the error itself is still reported
        folder.mkdir(parents=True, exist_ok=True)
        _write_traceback(folder, error)
        return folder
    return None


def _write_traceback(folder: Path, error: BaseException) -> None:
    text = _cut("".join(traceback.format_exception(error)), _LONGEST_TEXT)
    masked = "\n".join(map(mask_text, text.split("\n")))
    (folder / "traceback.txt").write_text(masked, encoding="utf-8", errors="replace")
    error.add_note(f"{WHERE}{folder}")  # printed with the error


def resources(run: Path) -> Mapping[str, Any]:
    """Return the memory and disk in use, in bytes; figures that are not available are left out."""
    memory, process, disk = psutil.virtual_memory(), psutil.Process(), shutil.disk_usage(run)
    found = {
        "host": {"total": memory.total, "available": memory.available, "swap_used": psutil.swap_memory().used},
        "process": {"resident": process.memory_info().rss, "threads": process.num_threads()},
        "disk": {"total": disk.total, "free": disk.free},
        "load": os.getloadavg(),
    }
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return found
    try:
        free, total = torch.cuda.mem_get_info()
        allocated, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        reserved = torch.cuda.memory_reserved()
    except RuntimeError as error:  # after an error of the device none of its functions works
        return {**found, "gpu": {"problem": str(error)}}
    gpu = {"total": total, "free": free, "allocated": allocated, "reserved": reserved, "peak": peak}
    return {**found, "gpu": gpu}


def _cut(value: Any, limit: int) -> Any:
    """Return a text without its middle if it is longer than ``limit``; any other value unchanged."""
    is_long = isinstance(value, str) and len(value) > limit
    return f"{value[: limit // 2]} ... {value[-limit // 2 :]}" if is_long else value


def _masked(record: Mapping[str, Any]) -> Mapping[str, Any]:
    plain: Mapping[str, Any] = mask(json.loads(json.dumps(record)))  # lists alone: mask passes over tuples
    return plain
