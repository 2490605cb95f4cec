"""Rolls a run back to an earlier checkpoint at a person's request."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.operations.named_checkpoint import refuse_other
from holdfast.bootstrap.run_folder.folder import RunFolder
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.wiring.assembly import assemble
from holdfast.bootstrap.wiring.compatibility import with_former_settings
from holdfast.bootstrap.wiring.process_group import is_restart
from holdfast.bootstrap.wiring.state_stores import archive_in_use, archive_of
from holdfast.configs.rendering import dump_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.state_store import StateStore


def return_to(
    step: int,
    settings: TrainSettings,
    report: Callable[[str], object],
    *,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Make the run of ``settings`` continue from its checkpoint of ``step``; later ones are moved to ``superseded/``.

    After a restart by a launcher this does nothing, as the first start has done it. The history in ``run.json`` records
    the roll-back. Raises ``StateError`` if there is no such checkpoint, or if it does not verify: then it is moved to
    quarantine, and nothing else changes.
    """
    if is_restart(environment):
        report(
            f"this is a restart, and the run went back to step {step} before: it continues from its newest checkpoint"
        )
        return
    directory = settings.run.directory
    if not RunLayout(directory).holds_checkpoints:
        read_record(directory)  # the folder of a run whose record is lost has checkpoints
    with closing(RunFolder(directory)) as folder:
        for sentence in folder.opening_remarks:
            report(sentence)
        alone = {"process_group": SingleProcessGroup()}  # the ranks meet for the run itself, not for this
        container = assemble(settings, directory, alone, report=report, keep_choice=folder.decide)
        store = container.state_store()
        with archive_in_use(store, directory, Inbox(), report):
            folder.begin(dump_settings(with_former_settings(settings, folder.began_with())))
            left = _verified(store, step, settings)
            if left == step:
                report(f"{directory} is at step {step} already")
                return
            store.supersede(step)
            folder.note({"from_step": {"left": left, "step": step}})
            store.flush()
    report(
        f"went back from step {left} to step {step}: later checkpoints of its disk are in {directory / 'superseded'}"
    )


def _verified(store: StateStore, step: int, settings: TrainSettings) -> int:
    """Return the newest step of ``store`` and its archive; raises ``StateError`` unless ``step`` verifies."""
    with archive_of(settings, is_writing=False) as archive:
        copies = () if archive is None else archive.list()
    steps = sorted({info.progress.step for info in (*store.list(), *copies)})
    refuse_other(store.load(at_most=step), steps, settings.run.directory, step)
    return max(steps, default=step)
