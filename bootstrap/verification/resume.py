"""Proof that a configuration resumes exactly: the same short run is done twice, and killed once in its middle."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.application.inbox import Inbox
from holdfast.bootstrap.process.child_run import ChildFailedError, room_beside, run_in_child
from holdfast.bootstrap.process.printing import report_line
from holdfast.bootstrap.process.signals import stopping_on_signals
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.verification.comparison import (
    compare_states,
    differing_positions,
    differing_steps,
    first_steps,
    steps_of,
)
from holdfast.bootstrap.verification.short_run import MODULE, ShortRun
from holdfast.bootstrap.verification.verdict import Verdict
from holdfast.bootstrap.wiring.process_group import is_launched
from holdfast.bootstrap.wiring.state_stores import build_disk_store
from holdfast.configs.sections.distributed import TorchDistributedSettings
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.domain.checkpoints.reproducibility import Reproducibility
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.state_store import StateStore

FEWEST_STEPS = 3
PREFIX = ".verify-resume-"
"""The beginning of the name of a folder for the runs."""


@final
@dataclass(frozen=True, slots=True)
class VerifyResume:
    """Trains ``steps`` steps of ``settings`` (from ``config`` and ``arguments``), once undisturbed and once killed."""

    settings: TrainSettings
    config: Sequence[Path]
    arguments: Sequence[str]
    steps: int

    def run(self, *, keep: bool) -> Verdict:
        """Return the verdict; all files are deleted at the end unless ``keep``.

        Raises ``ConfigurationError`` for settings that cannot be tried, ``ChildFailedError`` if one of the runs failed.
        """
        self.check()
        with (
            stopping_on_signals(lambda _reason, _number: False),
            room_beside(self.settings.run.directory, PREFIX, keep=keep) as room,
        ):
            undisturbed = self.short_run(room / "undisturbed")
            report_line(f"1 of 3: {undisturbed.steps} steps without interruption")
            _train(undisturbed)
            every = undisturbed.every
            killed = replace(self.short_run(room / "killed"), kill_after=2 * every)
            if (last := max(steps_of(Path(undisturbed.folder)), default=0)) < 2 * every:
                msg = f"the run ends at step {last} by itself: give it more data, or --steps {max(FEWEST_STEPS, last)}"
                raise ConfigurationError(msg)
            report_line(f"2 of 3: the same, killed (SIGKILL) after step {2 * every}")
            _train(killed)
            report_line(f"3 of 3: the killed run, resumed from checkpoint-{every} by a new process")
            _train(replace(killed, kill_after=None))
            return self.verdict(Path(undisturbed.folder), Path(killed.folder), every)

    def check(self) -> None:
        """Raise ``ConfigurationError`` for settings that cannot be tried."""
        if not isinstance(self.settings.state_store, DiskStateStoreSettings):
            msg = f"state_store.kind is {self.settings.state_store.kind}: checkpoints are compared for disk only"
            raise ConfigurationError(msg)
        if is_launched() or isinstance(self.settings.distributed, TorchDistributedSettings):
            msg = (
                "verify-resume starts its processes itself: leave torchrun away, and set distributed.kind=auto and "
                "distributed.processes"
            )
            raise ConfigurationError(msg)
        budget = self.settings.run.budget.steps
        if budget is not None and budget < FEWEST_STEPS:
            msg = f"run.budget.steps is {budget}, but a comparison needs at least {FEWEST_STEPS} steps: raise it"
            raise ConfigurationError(msg)

    def short_run(self, folder: Path) -> ShortRun:
        """Return the undisturbed run in ``folder``."""
        steps = min(self.steps, self.settings.run.budget.steps or self.steps)
        config = [str(path) for path in self.config]
        return ShortRun(config, list(self.arguments), str(folder), steps, every=max(1, steps // 3))

    def _store(self, folder: Path) -> StateStore:
        chosen = self.settings.state_store.model_copy(update={"archive": None})
        assert isinstance(chosen, DiskStateStoreSettings)  # seen by check
        return build_disk_store(folder, chosen, self.settings.run, Inbox(), report_line)

    def _chosen(self, run: Path) -> Mapping[str, str]:
        """Return the precision, and the value that was chosen for each setting that is auto."""
        resolved = {name: entry["value"] for name, entry in read_record(run)["auto"].items()}
        return {"optimizer.precision": self.settings.optimizer.precision, **resolved}

    def verdict(self, undisturbed: Path, killed: Path, every: int) -> Verdict:
        """Return the verdict on two runs, of which the second was killed after step ``2 * every``.

        Raises ``StateError`` if one of them has no checkpoint that verifies.
        """
        steps = steps_of(undisturbed)
        stores = self._store(undisturbed), self._store(killed)
        positions = differing_positions(*(store.list() for store in stores))
        differences = [*positions, *differing_steps(steps, steps_of(killed))]
        first, second = (store.load() for store in stores)
        if first.folder is None or first.info is None or second.folder is None or second.info is None:
            msg = "a run left no checkpoint that verifies: run verify-resume again with --keep and inspect both runs"
            raise StateError(msg)
        return Verdict(
            steps=max(steps),
            killed_after=2 * every,
            saved=every,
            resumed_from=(first_steps(killed) or [0])[-1],
            promises_bits=self.settings.run.deterministic and second.info.contract is Reproducibility.BITWISE,
            conditions={**first.info.conditions, **self._chosen(undisturbed)},
            differences=[found for _, found in sorted(differences, key=lambda found: found[0])],
            state=compare_states(first.folder, second.folder),
        )


def _train(run: ShortRun) -> None:
    """Do ``run`` in a new process, as ``train`` would; raises ``ChildFailedError`` if it fails."""
    code, log = start(run)
    if code and not (run.kill_after is not None and run.killed.exists()):
        sys.stderr.write(log)
        raise ChildFailedError(code)


def start(run: ShortRun) -> tuple[int, str]:
    """Run ``run`` in a new process; return its exit code, as a shell reports it, and its standard error."""
    return run_in_child([sys.executable, "-m", MODULE, run.to_argument()], Path(run.folder).with_name("log"))
