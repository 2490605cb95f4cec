"""A run folder that several processes share."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, final

from typing_extensions import override

from holdfast.bootstrap.run_folder.folder import RunFolder, is_for_all_ranks
from holdfast.bootstrap.run_folder.layout import RECORD
from holdfast.bootstrap.run_folder.post_mortem import write_before_training
from holdfast.bootstrap.run_folder.record_file import changed_settings, flatten
from holdfast.configs.error_messages import one_line
from holdfast.configs.secret_masking import mask_text
from holdfast.configs.strict_yaml import write_yaml
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.ports.process_group import ProcessGroup

T = TypeVar("T")


@final
class SharedRunFolder:
    """The run folder as each rank of ``group`` sees it: the first rank locks, decides and writes; the others follow.

    All ranks call the methods in the same order.
    """

    def __init__(self, path: Path, group: ProcessGroup) -> None:
        self.path = path
        self._group = group
        self._own = RunFolder(path) if group.rank == 0 else None
        self._refresh: Callable[[], None] | None = None
        self.post_mortem: Path | None = None
        """The folder that was written about an error before training."""

    def begin(self, settings: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
        """Record or check ``settings``, as ``RunFolder.begin`` does.

        Raises ``ConfigurationError`` if a rank has other settings, except those that may differ between hosts (caches,
        threads).
        """
        if self._own is not None:
            self._own.begin(settings, origins)
        first, *others = map(json.loads, self._group.gather(json.dumps(settings)))
        for rank, theirs in enumerate(others, start=1):
            if differing := [key for key in changed_settings(first, theirs) if is_for_all_ranks(key)]:
                msg = f"{differing[0]} of rank {rank} is not that of rank 0: give all processes the same settings"
                raise ConfigurationError(msg)

    def enter(self, phase: str) -> None:
        """Record in ``run.json`` that this start has reached ``phase``."""
        if self._own is not None:
            self._own.enter(phase)

    def note_shortage(self, clause: str | None, report: Callable[[str], object]) -> None:
        """Record in ``run.json`` why this start may run out of memory, and report it; nothing if ``clause`` is None."""
        if self._own is not None and clause is not None:
            self._own.record["start"]["memory"] = clause
            report(f"memory is short: {clause}; the system may end the run without a message")

    def note_failure(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Record in ``run.json`` the error that ended this start before training; an ``ExitStack`` calls this."""
        if self._own is None or kind is None or error is None:
            return
        if self._own.fail(mask_text(f"{kind.__name__}: {error}" if str(error) else kind.__name__)):
            self.post_mortem = write_before_training(self._own.path, error)

    def note_stop(self, reason: str) -> None:
        """Record in ``run.json`` that this start was stopped before training, for ``reason``."""
        if self._own is not None:
            self._own.fail(mask_text(reason), key="stopped")

    def decide(self, name: str, value: str, reason: str) -> str:
        """Return the choice of the first rank for the ``auto`` setting ``name``."""
        return self._group.gather(self._own.decide(name, value, reason) if self._own is not None else "")[0]

    def decision(self, name: str) -> Mapping[str, str]:
        """Return the recorded choice ``name`` with its reason, empty if there is none."""
        known = {} if self._own is None else self._own.record["auto"].get(name, {})
        agreed: Mapping[str, str] = json.loads(self._group.gather(json.dumps(known))[0])
        return agreed

    def record_decision(self, name: str, value: str, reason: str, details: Mapping[str, str]) -> None:
        """Record the choice ``name`` in place of an earlier one, on the first rank."""
        if self._own is not None:
            self._own.record["auto"][name] = {"value": value, "reason": reason, **details}

    def drop_decisions(self, beginning: str) -> None:
        """Drop each recorded choice whose name has this ``beginning``, on the first rank."""
        if self._own is not None:
            auto = self._own.record["auto"]
            self._own.record["auto"] = {name: auto[name] for name in auto if not name.startswith(beginning)}

    def decided(self, name: str) -> str | None:
        """Return the choice of an earlier start of the run for the ``auto`` setting ``name``, None if there is none."""
        known = {} if self._own is None else self._own.record["auto"].get(name, {})
        return self._group.gather(known.get("value", ""))[0] or None

    def hold_to(self, name: str, value: str, remedy: str) -> None:
        """Record the fact ``name``; raises ``StateError`` if the run began with another value or the ranks differ."""
        if self._own is not None:
            self._own.hold_to(name, value, remedy)
        everyones = self._group.gather(value)
        if strangers := [rank for rank, fact in enumerate(everyones) if fact != everyones[0]]:
            msg = f"the {name} of rank {strangers[0]} is not that of rank 0: give all processes the same"
            raise StateError(msg)

    def rules(self) -> Mapping[str, int]:
        """Return the version of each rule that the run follows; a new run records the newest."""
        own = None if self._own is None else self._own.rules()
        agreed: Mapping[str, int] = json.loads(self._group.gather(json.dumps(own))[0])
        return agreed

    def knows(self, name: str) -> bool:
        """Return whether the fact ``name`` was recorded when the run began."""
        is_known = self._own is not None and name in self._own.record["facts"]
        return bool(self._group.gather("known" if is_known else "")[0])

    def began_with(self) -> Mapping[str, Any] | None:
        """Return the settings of the run as recorded last, None for a new run; call this before ``begin``."""
        known = None if self._own is None else self._own.began_with()
        begun: Mapping[str, Any] | None = json.loads(self._group.gather(json.dumps(known))[0])
        return begun

    @property
    def record(self) -> dict[str, Any] | None:
        """Return the content of ``run.json`` for the next ``write``, on the first rank."""
        return None if self._own is None else self._own.record

    def note_versions(self, entries: Sequence[Mapping[str, str]]) -> None:
        """Record the versions of data that were read, as ``RunFolder.note_versions`` does."""
        if self._own is not None:
            self._own.note_versions(entries)

    def note_changed_data(self, how: str) -> None:
        """Record that the run continues on purpose with changed data; ``how`` describes the difference."""
        if self._own is not None:
            self._own.note_changed_data(how)

    @property
    def num_data_changes(self) -> int:
        """Return the number of times that the run has continued on purpose with other data."""
        return int(self._group.gather("" if self._own is None else str(self._own.num_data_changes))[0])

    def refresh_at_saves(self, refresh: Callable[[], None]) -> None:
        """Call ``refresh`` to update the record whenever a checkpoint is written, and then write the record."""
        self._refresh = refresh

    def as_saved(self) -> str:
        """Return the text of ``run.json`` for a checkpoint, on the first rank."""
        if self._refresh is not None:
            self._refresh()
            with suppress(StateError):  # the checkpoint has it
                self.write()
        return self.as_json()

    def gather(self, value: str) -> Sequence[str]:
        """Return the ``value`` of each rank."""
        return self._group.gather(value)

    @property
    def part(self) -> StatePart:
        """Return the part of each checkpoint that holds ``run.json`` at the time of its save."""
        return _RecordPart(self)

    @property
    def settings_before(self) -> Mapping[str, Any] | None:
        """Return the settings of the last start, None for a new run and on all ranks but the first."""
        return None if self._own is None else self._own.settings_before

    def told_changes(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """Return sentences on the changes to ``settings`` since the last start, on the first rank."""
        return [*told_changes(self.settings_before or {}, settings)]

    @property
    def opening_remarks(self) -> Sequence[str]:
        """Return what the user is told of the folder as it was found, on the first rank."""
        return [] if self._own is None else self._own.opening_remarks

    @property
    def run_id(self) -> str:
        """Return the unique id of this run on the first rank, empty on the others."""
        return "" if self._own is None else str(self._own.record["id"])

    @property
    def decisions(self) -> Mapping[str, Mapping[str, str]]:
        """Return the value and the reason chosen for each ``auto`` setting, on the first rank."""
        return {} if self._own is None else self._own.record["auto"]

    def as_json(self) -> str:
        """Return the text of ``run.json``, on the first rank."""
        return "" if self._own is None else self._own.as_json()

    def write(self) -> None:
        """Replace ``run.json``."""
        if self._own is not None:
            self._own.write()

    def close(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._own is not None:
            self._own.close()


@final
class _RecordPart(StatePart):
    def __init__(self, folder: SharedRunFolder) -> None:
        self.name = RECORD
        self._folder = folder

    @override
    def chunks(self) -> Iterator[bytes]:
        yield self._folder.as_saved().encode()


def in_turns(group: ProcessGroup, make: Callable[[], T], pass_on: Callable[[], object] | None = None) -> T:
    """Return the result of ``make``, called on the first rank, then on one rank of each machine, then on the rest.

    Later ranks find the files that earlier ranks have stored. Two ranks at a time would do the same work and write the
    same files. ``pass_on`` is called between two turns on all ranks; without it they wait at a barrier.
    """
    pass_on = pass_on or group.barrier
    is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    turn = 0 if group.rank == 0 else 1 if is_first_here else 2
    for _ in range(turn):
        pass_on()
    made = make()
    for _ in range(turn, 2):
        pass_on()
    return made


_MOST = 10
_LONGEST_VALUE = 30
_SHARED = 8  # characters shown before a difference
_LENGTHS = ("run.budget.steps", "run.budget.tokens", "run.budget.minutes", "data.epochs")
_SCHEDULE = "optimizer.schedule"


def told_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each setting that a person has changed, for the first ten of them.

    A setting that another version has added does not count as changed, unless its section was not set before. A last
    line follows if the learning rate is another one from here on, as the run has another length.
    """
    known = flatten(before)
    changes = [
        (key, old, new)
        for key, (old, new) in changed_settings(before, now).items()
        if key in known or any(known.get(above, 0) is None for above in _above(key))
    ]
    for key, old, new in changes[:_MOST]:
        yield f"changed: {key}: {' -> '.join(_words(old, new))}"
    if (more := len(changes) - _MOST) > 0:
        yield f"changed: {more} more (all are in run.json)"
    if {key for key, _, _ in changes} & {*_LENGTHS} and (kind := _kind_by_length(flatten(now))) is not None:
        yield (
            f"the learning rate follows the curve of the new length from here on ({_SCHEDULE}.kind={kind}), so it may "
            "jump"
        )


def _kind_by_length(settings: Mapping[str, Any]) -> str | None:
    """Return the kind of a schedule whose learning rates depend on the length of the run, None for any other."""
    kind = settings.get(f"{_SCHEDULE}.kind")
    ends_before = any(settings.get(f"{_SCHEDULE}.{name}") is not None for name in ("decay_steps", "decay_tokens"))
    return None if kind == "constant" or (kind in ("cosine", "linear") and ends_before) else kind


def _above(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def _words(old: object, new: object) -> tuple[str, str]:
    """Return both values as text that shows where they differ: a long beginning that they share is left out."""
    words = [one_line(value if isinstance(value, str) else write_yaml(value)) for value in (old, new)]
    pairs = enumerate(zip(*words, strict=False))
    shared = next((place for place, (one, other) in pairs if one != other), min(map(len, words)))
    first = shared - _SHARED if shared > _LONGEST_VALUE // 2 and max(map(len, words)) > _LONGEST_VALUE else 0
    before, after = (one_line(f"...{word[first:]}" if first else word, _LONGEST_VALUE) for word in words)
    return before, after
