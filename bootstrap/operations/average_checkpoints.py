"""A checkpoint whose weights are the weighted mean of the weights of several checkpoints of a run."""

from __future__ import annotations

import math
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, final
from uuid import uuid4

from holdfast.adapters.shared.files.committed_folder import move
from holdfast.adapters.shared.files.file_operations import FileOperations, explain
from holdfast.adapters.shared.tensor_state.file_parts import AVERAGE_FILE, MODEL_FILE, InMemoryPart, read_whole
from holdfast.adapters.state_store.checkpoint_writer import CheckpointWriter
from holdfast.adapters.state_store.manifest import COMMIT, MANIFEST
from holdfast.bootstrap.operations.named_checkpoint import (
    Choice,
    Place,
    damaged_steps,
    place_of,
    refuse_missing,
    restore,
)
from holdfast.bootstrap.operations.trained_model import open_store, open_trained, opening_weights, uses_average
from holdfast.bootstrap.run_folder.found_paths import at_project
from holdfast.bootstrap.run_folder.layout import RECORD, RunLayout
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.phase import show_nothing
from holdfast.ports.state_store import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.step_outcome import Evaluation
    from holdfast.ports.state_store import CheckpointInfo, OpenFile, StatePart, StateStore

REASON = "average"
_MOST_NAMED = 5
_NOT_COPIED = (MANIFEST, COMMIT, "optimizer.json", "loss_scale.json", "optimizer/layout.json")
_TENSORS = ".safetensors"


@dataclass(frozen=True, slots=True)
class Selection:
    """The checkpoints to average: those of ``steps``, or the ``last`` newest ones.

    ``weights`` are their relative weights by ascending step, None for equal ones. ``trained`` chooses the trained
    weights where the checkpoints have averages too (``optimizer.ema``). ``base`` is that of ``Choice``.
    """

    last: int | None = None
    steps: Sequence[int] = ()
    weights: Sequence[float] | None = None
    trained: bool = False
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A checkpoint that was averaged, its relative weight, and its share of the mean."""

    info: CheckpointInfo
    weight: float
    share: float


@dataclass(frozen=True, slots=True)
class AverageReport:
    """The average at ``location`` of ``members``, by ascending step.

    ``before`` is the evaluation of the newest member and ``after`` that of the average; None if not evaluated.
    """

    location: str
    members: Sequence[Member]
    before: Evaluation | None
    after: Evaluation | None


def average(
    run: Path,
    selection: Selection,
    folder: Path | None = None,
    *,
    trusted: Mapping[str, str] = MappingProxyType({}),
    evaluates: bool = True,
    show: ShowPhase = show_nothing,
) -> AverageReport:
    """Write the mean of the checkpoints of ``run`` that ``selection`` names as a checkpoint of its own.

    It is written to the new ``folder``, by default one in the run folder, completely or not at all, and commands take
    it by its path. Its manifest names the checkpoints that it was made of. It has no optimizer state, so no run can
    continue from it. With ``evaluates`` the newest of the checkpoints and the average are evaluated on the documents
    that the run held out, if there are any. ``trusted`` and ``show`` are as in ``open_trained``. Raises
    ``ConfigurationError`` if ``folder`` exists or ``selection`` does not fit, and ``StateError`` if checkpoints are
    missing, damaged or of different models, or the average cannot be written.
    """
    if place_of(run, Choice()).is_alone:
        msg = f"{run} is one checkpoint: name a run folder, such as runs/default"
        raise ConfigurationError(msg)
    store, is_encrypted = open_store(run, trusted=trusted, show=show)
    members = _members(store, run, selection)
    target = _target(run, folder, members, is_encrypted=is_encrypted)
    newest = Choice(members[-1].info.progress.step, trained=selection.trained, base=selection.base)
    before = _evaluated(run, newest, trusted, show) if evaluates else None
    with _Draft(target) as draft:
        kind = _write(draft, store, run, members, selection, show)
        after = _evaluated(draft.folder, Choice(base=selection.base), trusted, show) if evaluates else None
        draft.publish(_finite(after), _provenance(members, kind, before, after))
    return AverageReport(str(target), members, before, after)


@final
class _Draft:
    """A folder beside ``target`` that becomes it by ``publish``, and is deleted otherwise."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._files = FileOperations()
        self._writer = CheckpointWriter(self._files)
        self.folder = target.with_name(f".{target.name}.{uuid4().hex}")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the folder, if it was not published."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, snapshot: Snapshot) -> None:
        """Write the checkpoint anew; raises ``StateError`` if it cannot be written."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self._manifest = self._writer.write(snapshot, self.folder, generation=0)
        except OSError as error:
            raise self._unwritable(error) from error

    def publish(self, evaluation_loss: float | None, provenance: Mapping[str, Any]) -> None:
        """Record the loss and the origin in the manifest, and give the folder its name."""
        snapshot = replace(self._manifest.snapshot, evaluation_loss=evaluation_loss)
        manifest = replace(self._manifest, snapshot=snapshot, provenance=provenance)
        try:
            for name in (COMMIT, MANIFEST):
                self._files.remove_file(self.folder / name)
            self._writer.seal(self.folder, manifest)
            self._files.sync_folder(self.folder)
            move(self._files, self.folder, self._target)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StateError:
        return StateError(f"{self._target} cannot be written, {explain(error)}")


def _members(store: StateStore, run: Path, selection: Selection) -> Sequence[Member]:
    by_step = {info.progress.step: info for info in store.list()}
    broken = damaged_steps(run, [*by_step.values()])
    if selection.last is not None:
        if len(by_step) < selection.last:
            msg = f"{run} holds {len(by_step)} checkpoints, and {selection.last} were to be averaged: ask for fewer"
            raise StateError(msg)
        steps = sorted({*by_step, *broken})[-selection.last :]
    else:
        steps = sorted(set(selection.steps))
    for step in steps:
        if step in broken:
            msg = f"checkpoint-{step} of {run} is damaged: inspect shows its defect, and --steps names others"
            raise StateError(msg)
        refuse_missing([*by_step], run, step)
    weights = [1.0] * len(steps) if selection.weights is None else selection.weights
    if len(weights) != len(steps):
        msg = f"there are {len(weights)} weights for {len(steps)} checkpoints: give one for each, by ascending step"
        raise ConfigurationError(msg)
    total = math.fsum(weights)
    return [Member(by_step[step], weight, weight / total) for step, weight in zip(steps, weights, strict=True)]


def _target(run: Path, folder: Path | None, members: Sequence[Member], *, is_encrypted: bool) -> Path:
    if folder is None and is_encrypted:
        msg = f"the checkpoints of {run} are encrypted, and an average is not: name a folder for it with --output"
        raise ConfigurationError(msg)
    target = (RunLayout(run).averages / _name(members) if folder is None else folder).absolute()
    if target.exists() or target.is_symlink():
        msg = f"{target} already exists: name a new folder with --output"
        raise ConfigurationError(msg)
    return target


def _name(members: Sequence[Member]) -> str:
    steps = [str(member.info.progress.step) for member in members]
    if len(steps) > _MOST_NAMED:
        return f"{len(steps)}-steps-{steps[0]}-to-{steps[-1]}"
    return f"steps-{'-'.join(steps)}"


def _write(
    draft: _Draft,
    store: StateStore,
    run: Path,
    members: Sequence[Member],
    selection: Selection,
    show: ShowPhase,
) -> str:
    """Write the mean of ``members`` into ``draft``; return the kind of their weights, ``trained`` or ``average``."""
    newest, choice = members[-1].info, Choice(trained=selection.trained)
    snapshot = Snapshot(newest.progress, REASON, (), contract=newest.contract, conditions=newest.conditions)
    kinds: set[bool] = set()

    def use(folders: Sequence[tuple[Path, OpenFile]]) -> None:
        show("averaging the weights")
        kinds.clear()
        kinds.update(uses_average(folder, choice) for folder, _ in folders)
        if len(kinds) > 1:
            msg = f"only some of these checkpoints of {run} have averages (optimizer.ema): add --trained, or leave them"
            raise StateError(msg + " out")
        with ExitStack() as stack:
            parts = _parts(folders, [each.weight for each in members], choice, stack, run)
            draft.write(replace(snapshot, parts=parts))

    _open_all(store, run, [each.info.progress.step for each in members], use)
    return "average" if kinds.pop() else "trained"


def _open_all(
    store: StateStore,
    run: Path,
    steps: Sequence[int],
    use: Callable[[Sequence[tuple[Path, OpenFile]]], object],
    opened: Sequence[tuple[Path, OpenFile]] = (),
) -> None:
    """Call ``use`` with the checkpoints of ``steps``, each verified while it is read."""
    if not steps:
        use(opened)
        return
    place = Place(run, Choice(steps[0]))
    restore(store, place, lambda *found: _open_all(store, run, steps[1:], use, [*opened, found]))


def _parts(
    folders: Sequence[tuple[Path, OpenFile]], weights: Sequence[float], choice: Choice, stack: ExitStack, run: Path
) -> Sequence[StatePart]:
    """Return the files of the average: means of the weights, and the descriptions of the newest one of ``run``."""
    from holdfast.adapters.shared.tensor_state.consolidation import MeanTensors
    from holdfast.adapters.shared.tensor_state.sharded_tensors import saved_tensors

    sources = []
    for folder, open_file in folders:
        opens = opening_weights(folder, open_file, choice)
        sources.append(stack.enter_context(saved_tensors(folder / MODEL_FILE, opens)))
    newest, open_newest = folders[-1]
    parts: list[StatePart] = []
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        name = path.relative_to(newest).as_posix()
        if path.suffix == _TENSORS and path.parent == newest and not name.startswith("optimizer"):
            if name != AVERAGE_FILE:
                with saved_tensors(path, open_newest) as own:
                    parts.append(MeanTensors(name, list(own.shapes), sources, weights))
        elif path.suffix != _TENSORS and name not in _NOT_COPIED:
            content = read_whole(path, open_newest)
            parts.append(InMemoryPart(name, at_project(content, run) if name == RECORD else content))
    return parts


def _provenance(
    members: Sequence[Member], kind: str, before: Evaluation | None, after: Evaluation | None
) -> Mapping[str, Any]:
    return {
        "kind": "weighted mean",
        "weights": kind,
        "of": [
            {
                "step": member.info.progress.step,
                "location": member.info.location,
                "commit": _commit(Path(member.info.location)),
                "share": member.share,
                "evaluation_loss": member.info.evaluation_loss,
            }
            for member in members
        ],
        "loss_before": _finite(before),
        "loss_after": _finite(after),
    }


def _commit(folder: Path) -> str | None:
    """Return the hash of the manifest of a checkpoint on a disk, None of one elsewhere."""
    try:
        return (folder / COMMIT).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _evaluated(path: Path, choice: Choice, trusted: Mapping[str, str], show: ShowPhase) -> Evaluation | None:
    trained = open_trained(path, choice=choice, trusted=trusted, show=show)
    return trained.evaluate() if trained.has_documents else None


def _finite(evaluation: Evaluation | None) -> float | None:
    """Return the loss of ``evaluation``, None if there is none or it is not finite."""
    return evaluation.loss if evaluation is not None and math.isfinite(evaluation.loss) else None
