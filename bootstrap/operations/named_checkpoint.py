"""The checkpoint that a command names: the newest, that of a step, or the best of a run, or one in its own folder."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.files.file_operations import FileOperations, explain
from holdfast.adapters.state_store.checkpoint_inspection import is_checkpoint
from holdfast.adapters.state_store.checkpoint_verification import (
    complete,
    read_committed,
    read_manifest,
    require_sound,
)
from holdfast.adapters.state_store.hashing import CorruptCheckpoint
from holdfast.adapters.state_store.store_folder import StoreFolder
from holdfast.adapters.state_store.verified_read import verify_while_read
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.adapter_choice.process_group import is_restart
from holdfast.bootstrap.adapter_choice.state_stores import archive_in_use, archive_of
from holdfast.bootstrap.run_folder.best_checkpoint import best_step
from holdfast.bootstrap.run_folder.folder import RunFolder
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.stages.choose.former_settings import with_former_settings
from holdfast.bootstrap.stages.open_run.stage import open_run
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.rendering import dump_settings
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.state_store import CheckpointInfo, Loaded, OpenFile, StateStore

_MOST_NAMED = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of a checkpoint: that of ``step``, or the ``best`` by its evaluation, or by default the newest.

    ``trained`` chooses the trained weights where the checkpoint has their average too (``optimizer.ema``). ``base`` is
    the folder or hub name of the model that its adapters belong to, None for that of the run (``model.path``).
    """

    step: int | None = None
    best: bool = False
    trained: bool = False
    base: str | None = None

    @property
    def is_newest(self) -> bool:
        """Return whether no checkpoint is selected, so that it is the newest."""
        return self.step is None and not self.best


NEWEST = Choice()


@dataclass(frozen=True, slots=True)
class Place:
    """A run folder and the choice of a checkpoint; ``is_alone`` marks one checkpoint outside of a run folder."""

    path: Path
    choice: Choice
    is_alone: bool = False


def place_of(path: Path, choice: Choice) -> Place:
    """Return the place of the checkpoint; ``path`` is a run folder or the folder of one checkpoint.

    Raises ``ConfigurationError`` if ``path`` is one checkpoint and ``choice`` selects another, and ``StateError`` if
    ``path`` cannot be read.
    """
    try:
        if not is_checkpoint(path):
            return Place(path, choice)
    except OSError as error:
        msg = f"{path} cannot be read, {explain(error)}"
        raise StateError(msg) from error
    if not choice.is_newest:
        msg = f"{path} is one checkpoint: leave out --step and --best, or name its run folder"
        raise ConfigurationError(msg)
    folder = path.absolute()
    run = folder.parents[1] if len(folder.parents) > 1 else folder
    step = folder.name.rpartition("-")[2]
    if folder.parent == RunLayout(run).checkpoints and step.isdigit() and RunLayout(run).record.exists():
        return Place(path.parent.parent if len(path.parts) > 2 else run, replace(choice, step=int(step)))
    return Place(path, choice, is_alone=True)


def restore(store: StateStore, place: Place, into: Callable[[Path, OpenFile], object]) -> CheckpointInfo:
    """Pass the checkpoint at ``place`` in ``store`` to ``into``, as ``StateStore.restore`` does.

    Returns the checkpoint, after a warning for each newer one that is damaged; raises ``StateError`` if no such
    checkpoint verifies.
    """
    run, choice = place.path, place.choice
    infos = store.list()
    steps, broken = _steps_of(infos), [] if choice.is_newest else damaged_steps(run, infos)
    for number in broken if choice.best else ():
        _log.warning("checkpoint-%d of %s is damaged and cannot be chosen: inspect shows its defect", number, run)
    step = _best(infos, run) if choice.best else choice.step
    if step is not None and step not in broken:
        refuse_missing(steps, run, step)
    loaded = store.restore(into, at_most=step)
    if step is not None:
        refuse_other(loaded, steps, run, step)
    if loaded.info is None:
        msg = f"{run} holds no valid checkpoint yet: train it first"
        raise StateError(msg)
    for each in loaded.rejected:
        chosen = f"checkpoint-{loaded.info.progress.step}"
        _log.warning("%s of %s is damaged (%s) and was quarantined: %s is used", each.name, run, each.reason, chosen)
    return loaded.info


def damaged_steps(run: Path, found: Sequence[CheckpointInfo]) -> Sequence[int]:
    """Return the steps, ascending, of the checkpoints on the disk of ``run`` that are damaged and not in ``found``."""
    files = FileOperations()
    known, broken = _steps_of(found), []
    for folder in StoreFolder(run.absolute(), files).checkpoints():
        step = int(folder.name.rpartition("-")[2])
        try:
            if step not in known:
                read_manifest(files, folder)
        except CorruptCheckpoint:
            broken.append(step)
        except FileNotFoundError:
            continue  # the training process has deleted it
    return broken


def refuse_other(loaded: Loaded, steps: Sequence[int], run: Path, step: int) -> None:
    """Raise ``StateError`` unless ``loaded`` is of ``step``; ``steps`` are those in ``run`` before the load."""
    if loaded.info is not None and loaded.info.progress.step == step:
        return
    flaw = next((rejected.reason for rejected in loaded.rejected if rejected.name == f"checkpoint-{step}"), None)
    if flaw is None:
        refuse_missing(steps, run, step)
    why = "" if flaw is None else f" ({flaw})"
    msg = f"checkpoint-{step} of {run} is damaged{why} and was quarantined: choose another step from inspect"
    raise StateError(msg)


def restore_alone(folder: Path, into: Callable[[Path, OpenFile], object]) -> CheckpointInfo:
    """Pass the checkpoint in ``folder``, which may have any name, to ``into``; it is verified while it is read.

    Returns the checkpoint; raises ``StateError`` if it does not verify, is encrypted or cannot be read.
    """
    files = FileOperations()
    try:
        manifest = read_committed(files, folder)
        if manifest.wrapped_key is not None:
            msg = f"{folder} is encrypted: name its run folder with --step {manifest.progress.step}"
            raise StateError(msg)
        require_sound(files, folder, manifest, hashing=False)
        verify_while_read(files, folder, manifest.files, into)
    except CorruptCheckpoint as defect:
        msg = f"{folder} is damaged, {defect}: inspect shows all its problems"
        raise StateError(msg) from defect
    except OSError as error:
        msg = f"{folder} cannot be read, {explain(error)}"
        raise StateError(msg) from error
    return manifest.info(str(folder))


def folder_of(path: Path, choice: Choice) -> Path:
    """Return the folder of the checkpoint on the disk that ``choice`` selects, ``path`` itself if it selects none.

    Raises ``StateError`` if there is no such checkpoint or the checkpoints cannot be read.
    """
    if choice.is_newest:
        return path
    place = place_of(path, choice)
    store = StoreFolder(path.absolute(), FileOperations())
    try:
        infos = [manifest.info(str(folder)) for folder, manifest in complete(FileOperations(), store.checkpoints())]
    except OSError as error:
        msg = f"the checkpoints of {path} cannot be read, {explain(error)}"
        raise StateError(msg) from error
    step = _best(infos, place.path) if choice.best else choice.step
    assert step is not None
    folder = store.checkpoint(step)
    if not folder.exists():  # a damaged one is there to be looked at, too
        refuse_missing(_steps_of(infos), path, step)
    return path / folder.relative_to(path.absolute())


def _best(found: Sequence[CheckpointInfo], run: Path) -> int:
    step = best_step(found)
    if step is None:
        msg = (
            f"no checkpoint of {run} was evaluated when it was saved, so the best one is not known: choose one with "
            "--step, or train with evaluation.every as a multiple of state_store.every"
        )
        raise StateError(msg)
    if step not in (steps := _steps_of(found)):
        msg = f"the best evaluation of {run} was at step {step}, which has no checkpoint: choose one with --step, such "
        msg += f"as {steps[-1]}"
        raise StateError(msg)
    return step


def refuse_missing(steps: Sequence[int], run: Path, step: int) -> None:
    """Raise ``StateError`` unless ``step`` is one of the ``steps`` of the checkpoints of ``run``."""
    if step not in steps:
        named = ", ".join(str(each) for each in steps[-_MOST_NAMED:])
        msg = f"{run} holds no checkpoint of step {step}: " + (f"it holds {named}" if steps else "it holds none")
        raise StateError(msg)


def _steps_of(found: Sequence[CheckpointInfo]) -> Sequence[int]:
    return [info.progress.step for info in found]


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
        request = Request(settings, directory, Ports(settings, {}), report)
        alone = SingleProcessGroup()  # the ranks meet for the run itself, not for this
        store = open_run(request, alone, Inbox()).state_store
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
