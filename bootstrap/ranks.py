"""A run folder that several processes share."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, TypeVar, final

from bootstrap.run_folder import RunFolder, changed_settings, is_for_all_ranks
from domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ports.process_group import ProcessGroup

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

    def decide(self, name: str, value: str, reason: str) -> str:
        """Return what the first rank has decided for the ``auto`` setting ``name``."""
        return self._group.gather(self._own.decide(name, value, reason) if self._own is not None else "")[0]

    def hold_to(self, name: str, value: str, remedy: str) -> None:
        """Hold the run to the fact ``name``, and all ranks to the same; raises ``StateError``."""
        if self._own is not None:
            self._own.hold_to(name, value, remedy)
        everyones = self._group.gather(value)
        if strangers := [rank for rank, fact in enumerate(everyones) if fact != everyones[0]]:
            msg = f"the {name} of rank {strangers[0]} is not that of rank 0: give all processes the same"
            raise StateError(msg)

    def write(self) -> None:
        """Replace ``run.json``."""
        if self._own is not None:
            self._own.write()

    def close(self) -> None:
        """Let another process write here; twice is harmless."""
        if self._own is not None:
            self._own.close()


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
