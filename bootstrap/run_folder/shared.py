"""A run folder that several processes share."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, final

from typing_extensions import override

from holdfast.bootstrap.run_folder.folder import RunFolder, changed_settings, is_for_all_ranks
from holdfast.bootstrap.run_folder.layout import RECORD
from holdfast.bootstrap.run_folder.post_mortem import write_before_training
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.ports.process_group import ProcessGroup

T = TypeVar("T")


@final
class SharedRunFolder:
    """The run folder as each rank of ``group`` sees it: the first one locks, decides and writes, the others follow.

    All ranks call the methods in the same order.
    """

    def __init__(self, path: Path, group: ProcessGroup) -> None:
        self.path = path
        self._group = group
        self._own = RunFolder(path) if group.rank == 0 else None
        self._refresh: Callable[[], None] | None = None

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Take ``settings``, as ``RunFolder.begin`` does.

        Raises ``ConfigurationError`` if a rank was given others, but for what each host may have its own of (caches,
        threads).
        """
        if self._own is not None:
            self._own.begin(settings)
        first, *others = map(json.loads, self._group.gather(json.dumps(settings)))
        for rank, theirs in enumerate(others, start=1):
            if differing := [key for key in changed_settings(first, theirs) if is_for_all_ranks(key)]:
                msg = f"{differing[0]} of rank {rank} is not that of rank 0: give all processes the same settings"
                raise ConfigurationError(msg)

    def enter(self, phase: str) -> None:
        """Tell in ``run.json`` how far this start has come."""
        if self._own is not None:
            self._own.enter(phase)

    def note_shortage(self, clause: str | None, say: Callable[[str], object]) -> None:
        """Tell in ``run.json`` of this start why it may run out of memory, if a ``clause`` says so, and ``say`` so."""
        if self._own is not None and clause is not None:
            self._own.record["start"]["memory"] = clause
            say(f"memory is short: {clause}; the system may end the run without a word")

    def note_failure(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Tell in ``run.json`` what ended this start before it trained: an ``ExitStack`` calls this at its end."""
        if self._own is None or kind is None or error is None:
            return
        if self._own.fail(mask_text(f"{kind.__name__}: {error}" if str(error) else kind.__name__)):
            write_before_training(self._own.path, error)

    def decide(self, name: str, value: str, reason: str) -> str:
        """Return what the first rank has decided for the ``auto`` setting ``name``."""
        return self._group.gather(self._own.decide(name, value, reason) if self._own is not None else "")[0]

    def decided(self, name: str) -> str | None:
        """Return what an earlier start of the run has decided for the ``auto`` setting ``name``, None if none has."""
        known = {} if self._own is None else self._own.record["auto"].get(name, {})
        return self._group.gather(known.get("value", ""))[0] or None

    def hold_to(self, name: str, value: str, remedy: str) -> None:
        """Hold the run to the fact ``name``, and all ranks to the same; raises ``StateError``."""
        if self._own is not None:
            self._own.hold_to(name, value, remedy)
        everyones = self._group.gather(value)
        if strangers := [rank for rank, fact in enumerate(everyones) if fact != everyones[0]]:
            msg = f"the {name} of rank {strangers[0]} is not that of rank 0: give all processes the same"
            raise StateError(msg)

    def knows(self, name: str) -> bool:
        """Return whether the fact ``name`` was held when the run began."""
        is_known = self._own is not None and name in self._own.record["facts"]
        return bool(self._group.gather("known" if is_known else "")[0])

    def tokenizer_before(self) -> Mapping[str, Any] | None:
        """Return the tokenizer's settings that the run began with, None for a new run; to be asked before ``begin``."""
        known = None if self._own is None else self._own.tokenizer_before()
        found: Mapping[str, Any] | None = json.loads(self._group.gather(json.dumps(known))[0])
        return found

    @property
    def record(self) -> dict[str, Any] | None:
        """Return ``run.json`` as it is to be written, on the first rank."""
        return None if self._own is None else self._own.record

    def note_changed_data(self, how: str) -> None:
        """Record that the run continues on purpose with data that differ in this way."""
        if self._own is not None:
            self._own.note_changed_data(how)

    @property
    def num_data_changes(self) -> int:
        """Return how often the run has continued on purpose with other data."""
        return int(self._group.gather("" if self._own is None else str(self._own.num_data_changes))[0])

    def refresh_at_saves(self, refresh: Callable[[], None]) -> None:
        """Have ``refresh`` bring the record up to date whenever a checkpoint is written, and write it then."""
        self._refresh = refresh

    def as_saved(self) -> str:
        """Return what a checkpoint holds as ``run.json``, on the first rank."""
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
        """Return the part of each checkpoint that holds ``run.json`` as it is when the checkpoint is written."""
        return _RecordPart(self)

    @property
    def settings_before(self) -> Mapping[str, Any] | None:
        """Return the settings of the start before this one, None on other ranks than the first and for a new run."""
        return None if self._own is None else self._own.settings_before

    @property
    def run_id(self) -> str:
        """Return the unique id of this run on the first rank, empty on the others."""
        return "" if self._own is None else str(self._own.record["id"])

    @property
    def decisions(self) -> Mapping[str, Mapping[str, str]]:
        """Return what each ``auto`` was decided to be and why, on the first rank."""
        return {} if self._own is None else self._own.record["auto"]

    def as_json(self) -> str:
        """Return what stands in ``run.json``, on the first rank."""
        return "" if self._own is None else self._own.as_json()

    def write(self) -> None:
        """Replace ``run.json``."""
        if self._own is not None:
            self._own.write()

    def close(self) -> None:
        """Let another process write here; twice is harmless."""
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


def in_turns(group: ProcessGroup, make: Callable[[], T]) -> T:
    """Return what ``make`` gives, made by the first rank first, then by one on each machine, then by the others.

    What it keeps in folders is found by those behind; two at a time would do the same work and write the same files.
    """
    is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"
    turn = 0 if group.rank == 0 else 1 if is_first_here else 2
    for _ in range(turn):
        group.barrier()
    made = make()
    for _ in range(turn, 2):
        group.barrier()
    return made
