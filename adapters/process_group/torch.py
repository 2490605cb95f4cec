"""A process group of the processes that torchrun started."""

from __future__ import annotations

import atexit
import itertools
import json
import math
import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import torch
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo
from torch.distributed.rendezvous import rendezvous
from typing_extensions import override

from holdfast.adapters.shared.network.ranks import COURTESY_SECONDS
from holdfast.domain.commands import from_json, to_json
from holdfast.domain.errors import ConfigurationError, TrainingError
from holdfast.ports.process_group import KeyValueStore, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.commands import Command

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MEETING_SECONDS = 600.0  # all were started at once: they differ by the time that imports take
_ABSENT, _PRESENT = "-", "+"  # before a text, so that no text is taken for none
_group_numbers = itertools.count()


@final
class TorchProcessGroup(ProcessGroup, KeyValueStore):
    """The processes of torchrun's environment, joined by gloo on the CPU, independently of other torch groups.

    It neither needs nor disturbs the group that moves gradients, which may be created before or after it. All ranks of
    a run make their groups in the same order. Commands are sent as JSON, so received data is never run as code. If no
    rank has a command, ``agree`` costs one exchange of eight bytes a rank.

    Each restart by torchrun needs a new meeting point: ``--standalone`` or ``--rdzv-backend c10d``, with
    ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``; otherwise torch's gloo groups, this one included, find the addresses of
    dead processes. ``timeout_seconds`` must exceed the longest time that ranks wait for another rank, for example while
    it saves. Raises ``ConfigurationError`` without torchrun's environment, ``TrainingError`` if the ranks do not find
    each other.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._rank, self._size = _place()
        self._timeout_seconds = timeout_seconds
        timeout = timedelta(seconds=timeout_seconds)
        meeting, asked = min(timeout_seconds, _MEETING_SECONDS), time.monotonic()
        try:
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=meeting)))
            own = PrefixStore(f"holdfast/process_group/{next(_group_numbers)}", store)
            self._texts = PrefixStore("texts", own)
            self._group: Any = ProcessGroupGloo(own, self._rank, self._size, timeout)
        except (RuntimeError, ValueError) as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            bound = _waited(asked, meeting)
            msg = f"rank {self._rank} of {self._size} did not reach the others at {where}{bound}; check that they start"
            raise TrainingError(msg) from error
        atexit.register(self.close)  # a group that is still there when the interpreter ends aborts the process
        self.barrier()  # rank 0 serves the rendezvous: no rank may leave before all have joined

    @property
    @override
    def rank(self) -> int:
        return self._rank

    @property
    @override
    def size(self) -> int:
        return self._size

    @property
    @override
    def timeout_seconds(self) -> float:
        return self._timeout_seconds

    @override
    def agree(self, commands: Sequence[Command]) -> Sequence[Command]:
        texts = self.gather(json.dumps([to_json(command) for command in commands]) if commands else "")
        return tuple(from_json(record) for text in texts if text for record in json.loads(text))

    @override
    def gather(self, text: str) -> Sequence[str]:
        mine = text.encode()
        sizes = [int(size) for size in self._gather(torch.tensor([len(mine)], device="cpu"))]
        if not any(sizes):
            return [""] * self._size
        payload = torch.frombuffer(bytearray(mine.ljust(max(sizes))), dtype=torch.uint8)
        return [bytes(part[:size].tolist()).decode() for part, size in zip(self._gather(payload), sizes, strict=True)]

    @override
    def sum(self, numbers: Sequence[float]) -> Sequence[float]:
        everyones = self._gather(torch.tensor(list(numbers), dtype=torch.float64, device="cpu"))
        return [math.fsum(column) for column in zip(*(part.tolist() for part in everyones), strict=True)]

    @override
    def barrier(self) -> None:
        self._gather(torch.zeros(1, dtype=torch.int64, device="cpu"))

    @override
    def publish(self, key: str, text: str) -> None:
        with suppress(RuntimeError):  # the store is lost with the rank that serves it, which the next exchange reports
            self._texts.set(key, _PRESENT + text)

    @override
    def lookup(self, key: str) -> str | None:
        with suppress(RuntimeError):
            # get would wait for a key that another rank forgets meanwhile; this returns what it expects of one without
            # a value, and changes nothing
            text: str = self._texts.compare_set(key, _ABSENT, _ABSENT).decode()
            return text[1:] if text.startswith(_PRESENT) else None
        return None

    @override
    def forget(self, key: str) -> None:
        with suppress(RuntimeError):
            self._texts.delete_key(key)

    @override
    def close(self) -> None:
        atexit.unregister(self.close)
        self._group = None

    def _gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        if self._group is None:
            msg = f"rank {self._rank} of {self._size} has left its group; end the run"
            raise TrainingError(msg)
        everyone = [torch.empty_like(mine) for _ in range(self._size)]
        asked = time.monotonic()
        try:
            self._group.allgather([everyone], [mine]).wait()
        except RuntimeError as error:
            self.close()
            bound = _waited(asked, self._timeout_seconds)
            time.sleep(COURTESY_SECONDS)
            msg = (
                f"rank {self._rank} of {self._size} lost the other ranks{bound}; look for the first error in their "
                "output and restart"
            )
            raise TrainingError(msg) from error
        return everyone


def _waited(since: float, most: float) -> str:
    """Return the time limit in words if the wait reached ``most`` seconds; an earlier failure has another cause."""
    return f" within {most:.0f} s, its time limit" if time.monotonic() - since >= most else ""


def _place() -> tuple[int, int]:
    missing = [name for name in _ENVIRONMENT if not os.environ.get(name)]
    if missing:
        msg = f"{', '.join(missing)} not set in the environment; start several processes with torchrun"
        raise ConfigurationError(msg)
    try:
        rank, size, _ = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError as error:
        msg = f"RANK, WORLD_SIZE and MASTER_PORT must be numbers ({error}); start several processes with torchrun"
        raise ConfigurationError(msg) from error
    if not 0 <= rank < size:
        msg = f"RANK={rank} does not fit WORLD_SIZE={size}; start several processes with torchrun"
        raise ConfigurationError(msg)
    return rank, size
