"""The folder of a study: its record, the claims on its trials, and the names of its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.file_lock import lock, locked, open_lock
from holdfast.adapters.shared.files.file_operations import explain, replace_file
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular, sealed, unsealed
from holdfast.bootstrap.run_folder.folder import is_for_all_ranks
from holdfast.bootstrap.run_folder.found_paths import moved_elsewhere
from holdfast.bootstrap.run_folder.layout import STUDY_RECORD, RunLayout
from holdfast.bootstrap.run_folder.record_file import changed_settings
from holdfast.configs.run_names import is_below
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.tuning.trial import TrialVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SCHEMA = 1
_NOT_OF_STUDY = ("state_store", "tune.most_failures", "tune.parallel")


@dataclass(frozen=True, slots=True)
class StudyLayout:
    """The paths in the folder ``root`` of a study; none of them needs to exist."""

    root: Path

    @property
    def record(self) -> Path:
        """Return the file with the settings and the space of the study."""
        return self.root / STUDY_RECORD

    @property
    def journal(self) -> Path:
        """Return Optuna's journal of the trials."""
        return self.root / "journal.log"

    @property
    def best(self) -> Path:
        """Return the file with the settings of the best trial."""
        return self.root / "best.yaml"

    @property
    def report(self) -> Path:
        """Return the report on the study."""
        return RunLayout(self.root).report

    def trial(self, number: int) -> Path:
        """Return the run folder of trial ``number``."""
        return self.root / f"trial-{number:04d}"

    def log(self, number: int) -> Path:
        """Return the file with the output of the processes of trial ``number``."""
        return self.root / f"trial-{number:04d}.log"

    def claim(self, number: int) -> Path:
        """Return the file that the process which is responsible for trial ``number`` keeps locked."""
        return self.root / f".trial-{number:04d}.lock"


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """The facts of a study that do not change after its first start.

    ``parallel`` is the number of trials that may train at once, ``threads`` the number of threads that compute in each
    trial on a CPU, None for the usual number. ``settings`` and ``space`` are plain data, secrets masked.
    """

    settings: Mapping[str, Any]
    space: Mapping[str, Any]
    seed: int
    parallel: int
    threads: int | None
    id: str
    created: str


def begin_study(
    root: Path, settings: Mapping[str, Any], space: Mapping[str, Any], fresh: Mapping[str, Any], *, parallel: int | None
) -> StudyRecord:
    """Return the record of the study in ``root``, which is made of ``fresh`` if the study begins.

    ``parallel`` is the number of trials at once that the settings ask for, None if they do not. Raises
    ``ConfigurationError`` that names a difference if the study began with other settings or another space, and
    ``StateError`` if the folder cannot be used.
    """
    path = StudyLayout(root).record
    if RunLayout(root).record.exists():
        msg = f"{root} is the folder of a run: give the study another name with run.name"
        raise ConfigurationError(msg)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(open_lock(path.with_name(".study.lock"))):
            if not path.exists():
                now = datetime.now(UTC).isoformat(timespec="seconds")
                written = {"schema": _SCHEMA, "created": now, **fresh, "space": space, "settings": settings}
                replace_file(path, json.dumps(sealed(written), indent=1).encode())
    except OSError as error:
        msg = f"the folder of the study {root} cannot be used, {explain(error)}; choose another with run.dir"
        raise StateError(msg) from error
    record = read_study(root)
    _check_same(root, record, settings, space, parallel)
    return record


def hold_study(root: Path) -> int:
    """Return a descriptor that keeps the study in ``root`` at its place until it is closed.

    Several processes may hold it. Raises ``StateError`` if another process is setting the folder aside, or if the lock
    cannot be used.
    """
    path = RunLayout(root).lock
    try:
        descriptor = open_lock(path)
    except OSError as error:
        msg = f"{path} cannot be used, {explain(error)}"
        raise StateError(msg) from error
    try:
        return lock(descriptor, is_shared=True)
    except OSError as error:
        msg = f"{root} cannot be used, as another process trains in it or sets it aside: wait for it"
        raise StateError(msg) from error


def read_study(root: Path) -> StudyRecord:
    """Return the record of the study in ``root``; raises ``StateError`` if it is missing, damaged or unreadable."""
    path = StudyLayout(root).record
    try:
        record = parse_json(read_regular(path))
        if record["schema"] > _SCHEMA:
            msg = f"{path} was written by a newer holdfast: upgrade to read it"
            raise StateError(msg)
        record = unsealed(record)
        names = ("settings", "space", "seed", "parallel", "threads", "id", "created")
        return StudyRecord(*(record[name] for name in names))
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"{root} is not the folder of a study: it has no {path.name}"
        raise StateError(msg) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path} is damaged ({type(error).__name__}: {error}): set the folder aside with tune --fresh"
        raise StateError(msg) from error


def claim_trial(root: Path, number: int) -> int | None:
    """Return a descriptor that reserves trial ``number`` for this process until it is closed; None if another has it.

    Raises ``StateError`` if the file of the claim cannot be used.
    """
    path = StudyLayout(root).claim(number)
    try:
        descriptor = open_lock(path)
    except OSError as error:
        msg = f"{path} cannot be used, {explain(error)}"
        raise StateError(msg) from error
    try:
        return lock(descriptor)
    except BlockingIOError:
        return None
    except OSError as error:
        msg = f"{path} cannot be locked, {explain(error)}"
        raise StateError(msg) from error


def _check_same(
    root: Path, record: StudyRecord, settings: Mapping[str, Any], space: Mapping[str, Any], parallel: int | None
) -> None:
    again = "put it back, give the new study another run.name, or set the old one aside with tune --fresh"
    changes = changed_settings(record.settings, settings)
    own = filter(_belongs_to_study, changes)
    for key in sorted(moved_elsewhere(own, {"settings": record.settings}, root, settings)):
        old, new = ("not set" if value is None else repr(value) for value in changes[key])
        msg = f"{key} was {old} when the study in {root} began and is {new} now: {again}"
        raise ConfigurationError(msg)
    now = json.loads(json.dumps(space))
    for name in sorted({*record.space, *now}):
        if record.space.get(name) != now.get(name):
            msg = f"the values of {name} in the space were others when the study in {root} began: {again}"
            raise ConfigurationError(msg)
    if parallel is not None and parallel != record.parallel:
        msg = f"tune.parallel is {parallel}, but the study in {root} began with {record.parallel}: {again}"
        raise ConfigurationError(msg)


def _belongs_to_study(key: str) -> bool:
    """Return whether the results of a trial depend on the setting ``key``."""
    return not is_below(key, _NOT_OF_STUDY) and (is_for_all_ranks(key) or is_below(key, ("tune", "run.deterministic")))


@final
class VerdictFile:
    """``verdicts.jsonl`` of the run folder ``root``: the study adds them, and the process of the trial reads them."""

    def __init__(self, root: Path) -> None:
        self._lines = JsonLines(RunLayout(root).verdicts)

    def at(self, step: int) -> TrialVerdict | None:
        """Return the verdict on the evaluation at ``step``, None if there is none yet."""
        return next((verdict for verdict in self.all() if verdict.step == step), None)

    def all(self) -> list[TrialVerdict]:
        """Return all verdicts, the first one of each step; raises ``StateError`` if the file cannot be read."""
        verdicts: dict[int, TrialVerdict] = {}
        for record in self._lines.read():
            step, reason = record.get("step"), record.get("reason")
            if isinstance(step, int) and (reason is None or isinstance(reason, str)):
                verdicts.setdefault(step, TrialVerdict(step, reason))
        return list(verdicts.values())

    def add(self, verdict: TrialVerdict) -> None:
        """Add ``verdict``; raises ``StateError`` if it cannot be written."""
        word = "continue" if verdict.reason is None else "prune"
        self._lines.append({"step": verdict.step, "verdict": word, "reason": verdict.reason})

    def close(self) -> None:
        """Close the file."""
        self._lines.close()
