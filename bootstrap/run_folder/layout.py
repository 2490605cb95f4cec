"""The names of the files in a run folder."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.adapters.state_store.store_folder import committed_steps, folder_name
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RECORD = "run.json"
"""The record of a run, also as a part of each of its checkpoints."""
STUDY_RECORD = "study.json"
"""The record of a study of `tune`, whose trials are run folders in its own folder."""


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths in the run folder ``root``; none of them needs to exist."""

    root: Path

    @property
    def record(self) -> Path:
        """Return the file with the settings, decisions and history of the run."""
        return self.root / RECORD

    @property
    def lock(self) -> Path:
        """Return the file that the training process keeps locked."""
        return self.root / "LOCK"

    @property
    def events(self) -> Path:
        """Return the file with one line for each event."""
        return self.root / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """Return the file with one line for each measured step."""
        return self.root / "metrics.jsonl"

    @property
    def metrics_database(self) -> Path:
        """Return the file with the metrics of the monitor ``sqlite``, unless a setting names another."""
        return self.root / "metrics.sqlite"

    @property
    def trackers(self) -> Path:
        """Return the file with the last step up to which each tracker has all metrics."""
        return self.root / "trackers.json"

    @property
    def evaluations(self) -> Path:
        """Return the file with one line for each checkpoint that was evaluated by benchmark suites."""
        return self.root / "evaluations.jsonl"

    @property
    def suites(self) -> Path:
        """Return the folder of the process that evaluates checkpoints by suites: its log, and what it has to do."""
        return self.root / "suites"

    @property
    def goodput(self) -> Path:
        """Return the file with one line for each recorded span of time."""
        return self.root / "goodput.jsonl"

    @property
    def samples(self) -> Path:
        """Return the file with one line for each text that an evaluation generated."""
        return self.root / "samples.jsonl"

    @property
    def supervision(self) -> Path:
        """Return the file that says which tokens are trained on, with some rows of the data."""
        return self.root / "supervision.json"

    @property
    def verdicts(self) -> Path:
        """Return the file with one line for each evaluation of a trial: whether its study lets it go on."""
        return self.root / "verdicts.jsonl"

    @property
    def restarts(self) -> Path:
        """Return the file with one line for each death of a supervised run."""
        return self.root / "restarts.jsonl"

    @property
    def audit(self) -> Path:
        """Return the audit log of the checkpoints."""
        return self.root / "audit.jsonl"

    def rejected(self, rank: int) -> Path:
        """Return the file with one line for each record that ``rank`` could not use."""
        return self.root / (f"rejected.rank{rank}.jsonl" if rank else "rejected.jsonl")

    @property
    def ledger(self) -> Path:
        """Return the database of the ledger of kind ``sqlite``."""
        return self.root / "ledger.sqlite"

    @property
    def ledger_calls(self) -> Path:
        """Return the folder with the calls that the database of the ledger has not recorded yet."""
        return self.root / "ledger-calls"

    @property
    def data_records(self) -> Sequence[Path]:
        """Return the files that describe single documents, sorted: rejected records, the ledger and shown rows."""
        data = ("rejected.jsonl", "rejected.rank*.jsonl", self.supervision.name)
        names = (*data, f"{self.ledger.name}*", f"{self.ledger_calls.name}/*")
        return sorted(path for name in names for path in self.root.glob(name) if not path.is_dir())

    @property
    def micro_batch(self) -> Path:
        """Return the file with the micro-batch sizes that fitted into memory."""
        return self.root / "micro-batch.json"

    @property
    def heartbeats(self) -> Path:
        """Return the folder with one file for each rank that is alive."""
        return self.root / "heartbeats"

    @property
    def stacks(self) -> Path:
        """Return the folder with the stacks of ranks that hung."""
        return self.root / "stacks"

    @property
    def report(self) -> Path:
        """Return the report on the run, which is written when a start ends."""
        return self.root / "report.html"

    @property
    def post_mortem(self) -> Path:
        """Return the folder with one folder for each start that failed."""
        return self.root / "post-mortem"

    @property
    def profile(self) -> Path:
        """Return the folder of profiles, unless a setting names another."""
        return self.root / "profile"

    @property
    def tensorboard(self) -> Path:
        """Return the folder of TensorBoard's files."""
        return self.root / "tensorboard"

    @property
    def wandb(self) -> Path:
        """Return the folder of W&B's library, which puts it beside the other files of a run."""
        return self.root / "wandb"

    @property
    def averages(self) -> Path:
        """Return the folder with one folder for each average of checkpoints, unless a command names another."""
        return self.root / "averages"

    @property
    def checkpoints(self) -> Path:
        """Return the folder with one folder for each checkpoint."""
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint of ``step``."""
        return self.checkpoints / folder_name(step)

    def durable_steps(self) -> Sequence[int]:
        """Return the steps of the committed checkpoints in ascending order; nothing is verified."""
        return committed_steps(self.root)

    def newest_durable_step(self) -> int:
        """Return the step of the newest committed checkpoint, 0 if there is none."""
        return max(self.durable_steps(), default=0)

    @property
    def holds_run(self) -> bool:
        """Return whether the folder holds the record of a run, or checkpoints, which may have copies of it."""
        return self.record.exists() or bool(self.durable_steps())

    @property
    def holds_checkpoints(self) -> bool:
        """Return whether the folder holds anything with the name of a checkpoint, committed or not."""
        return any(self.checkpoints.glob("checkpoint-*"))

    @property
    def is_unwritten(self) -> bool:
        """Return whether the folder holds the lock of a start and no other file of a run or of a study yet."""
        others = (self.record, self.checkpoints, self.root / STUDY_RECORD)
        return self.lock.is_file() and not any(other.exists() for other in others)


_LIBRARIES = ("torch", "numpy", "transformers", "accelerate", "deepspeed", "tokenizers", "safetensors")
_VARIABLES = ("CUDA_", "NCCL_", "OMP_", "MKL_", "PYTORCH_", "SLURM_JOB", "SLURM_NODE", "TORCH")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The variables by which a launcher tells each process its rank."""


def environment() -> Mapping[str, Any]:
    """Return the environment of this process as plain data, secrets included."""
    versions = {"holdfast-lm": __version__}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    chosen = {
        name: value for name, value in os.environ.items() if name in RANK_VARIABLES or name.startswith(_VARIABLES)
    }
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "usable_processors": usable_cpus(),
        "process": os.getpid(),
        "versions": versions,
        "variables": chosen,
    }
