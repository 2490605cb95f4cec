"""The contract of ``ProcessGroup``."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from holdfast.domain.commands import Evaluate, SaveCheckpoint, SaveReason, SplitBatch, StopRun, to_json
from holdfast.domain.errors import TrainingError
from holdfast.ports.process_group import KeyValueStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.domain.commands import Command
    from holdfast.ports.process_group import ProcessGroup

_NUM_ROUNDS = 40
_PATIENCE = 90.0  # seconds that a rank of a busy machine may be late
_NUM_TEXTS = 2000


class ProcessGroupContract(ABC):
    """The contract of every ``ProcessGroup``; derive a class named ``Test...`` for an adapter."""

    short_timeout: float = 2.0
    """Time-out, in seconds, of groups in which a rank does not come; making the group may need some of it."""

    @abstractmethod
    def on_each_rank(self, task: Callable[[ProcessGroup], Any], *, timeout_seconds: float) -> Sequence[Any]:
        """Create a group, run ``task`` on all its ranks at the same time, and return the results by rank.

        ``task`` is a function at the top level of a module and returns JSON, so that its name and its result can be
        sent to other processes. This method closes the groups, none of them before all ranks have returned.
        """

    def test_every_rank_has_its_own_number(self) -> None:
        """``rank`` lies in ``[0, size)`` and is different on each rank; ``size`` is the same on all ranks."""
        places = self.on_each_rank(place, timeout_seconds=_PATIENCE)
        assert list(places) == [[rank, len(places)] for rank in range(len(places))]

    def test_all_ranks_agree(self) -> None:
        """Every rank gets the commands of all ranks, by rank, in the order of each rank, without duplicates."""
        results = self.on_each_rank(agree_on_every_kind, timeout_seconds=_PATIENCE)
        expected = [to_json(command) for rank in range(len(results)) for command in every_kind(rank)]
        assert list(results) == [expected] * len(results)

    def test_ranks_agree_while_some_have_nothing(self) -> None:
        """A command that only the last rank passes reaches all ranks."""
        results = self.on_each_rank(agree_on_what_the_last_rank_wants, timeout_seconds=_PATIENCE)
        assert list(results) == [[to_json(Evaluate())]] * len(results)

    def test_nothing_is_agreed_on_nothing(self) -> None:
        """If no rank passes a command, ``agree`` returns none."""
        results = self.on_each_rank(agree_on_nothing, timeout_seconds=_PATIENCE)
        assert list(results) == [[]] * len(results)

    def test_many_rounds(self) -> None:
        """In many rounds of random length, no rank loses, duplicates or reorders a command."""
        results = self.on_each_rank(agree_in_many_rounds, timeout_seconds=_PATIENCE)
        expected = [
            to_json(command)
            for number in range(_NUM_ROUNDS)
            for rank in range(len(results))
            for command in some_commands(rank, number)
        ]
        assert list(results) == [expected] * len(results)

    def test_one_rank_is_the_identity(self) -> None:
        """A group of one rank returns the argument of ``agree`` immediately."""
        results = self.on_each_rank(agree_once, timeout_seconds=_PATIENCE)
        assert len(results) > 1 or results[0] == [to_json(command) for command in every_kind(0)]

    def test_every_text_is_gathered(self) -> None:
        """Each rank gets the texts of all ranks, ordered by rank, of any length and also empty."""
        results = self.on_each_rank(gather_texts, timeout_seconds=_PATIENCE)
        everyones = [[text_of(rank, number) for rank in range(len(results))] for number in range(3)]
        assert list(results) == [everyones] * len(results)

    def test_numbers_are_summed(self) -> None:
        """Each rank gets the same sums; sums of integers are exact."""
        results = self.on_each_rank(sum_numbers, timeout_seconds=_PATIENCE)
        size = len(results)
        assert list(results) == [[2.0**50 * size + sum(range(size)), 0.5 * size, 0.0]] * size

    def test_a_barrier_waits_for_every_rank(self) -> None:
        """No rank leaves the barrier before the last rank, which is late, has reached it."""
        times = self.on_each_rank(pass_a_barrier, timeout_seconds=_PATIENCE)
        assert min(left for _, left in times) >= max(came for came, _ in times)

    def test_a_silent_rank_does_not_hang_an_agreement(self) -> None:
        """If one rank does not call ``agree``, it raises ``TrainingError`` on the others within the timeout."""
        *others, _ = self.on_each_rank(agree_while_the_last_rank_is_silent, timeout_seconds=self.short_timeout)
        assert all(error == "TrainingError" for error in others), others

    def test_a_gone_rank_does_not_hang_a_barrier(self) -> None:
        """If one rank has left, ``barrier`` raises ``TrainingError`` on the others within the timeout."""
        *others, _ = self.on_each_rank(wait_while_the_last_rank_is_gone, timeout_seconds=self.short_timeout)
        assert all(error == "TrainingError" for error in others), others

    def test_a_text_is_seen_by_all_ranks(self) -> None:
        """If the group is a ``KeyValueStore``, all ranks look up what one published, until it is forgotten."""
        results = self.on_each_rank(publish_and_look, timeout_seconds=_PATIENCE)
        assert all(each == [[f"text {rank}" for rank in range(len(results))], None, None] for each in results if each)

    def test_a_text_may_be_forgotten_while_others_look(self) -> None:
        """A lookup that meets ``forget`` returns the whole text or None, and does not wait for another text."""
        for seen in self.on_each_rank(look_while_the_first_rank_forgets, timeout_seconds=_PATIENCE):
            assert set(seen[0]) <= {None, "text"}
            assert seen[1] < _PATIENCE

    def test_close_needs_nobody_and_may_come_twice(self) -> None:
        """One rank can call ``close`` twice while the other ranks do not call it."""
        results = self.on_each_rank(close_on_the_first_rank, timeout_seconds=_PATIENCE)
        assert list(results) == ["closed", *["open"] * (len(results) - 1)]

    def test_a_quick_rank_does_not_break_the_last_round(self) -> None:
        """A rank that closes right after a round does not make the other ranks fail in that round."""
        for _ in range(3):
            results = self.on_each_rank(close_right_after_the_last_round, timeout_seconds=_PATIENCE)
            assert list(results) == [len(results)] * len(results)


def publish_and_look(group: ProcessGroup) -> Sequence[Any]:
    """Return the texts of all ranks, one that none has published, and one after it was forgotten; empty without any."""
    if not isinstance(group, KeyValueStore):
        return []
    group.publish(f"place {group.rank}", "an earlier text")
    group.publish(f"place {group.rank}", f"text {group.rank}")
    group.barrier()
    seen = [group.lookup(f"place {rank}") for rank in range(group.size)]
    nothing = group.lookup("elsewhere")
    group.barrier()
    group.forget(f"place {group.rank}")
    group.forget("elsewhere")
    return [seen, nothing, group.lookup(f"place {group.rank}")]


def look_while_the_first_rank_forgets(group: ProcessGroup) -> Sequence[Any]:
    """Return the different texts that this rank saw while the first rank published and forgot one, and the seconds."""
    if not isinstance(group, KeyValueStore):
        return [[], 0.0]
    group.barrier()
    began, seen = time.monotonic(), set()
    if group.rank == 0:
        for _ in range(_NUM_TEXTS):
            group.publish("fleeting", "text")
            group.forget("fleeting")
        group.publish("end", "")
    while group.lookup("end") is None:
        seen.add(group.lookup("fleeting"))
    waited = time.monotonic() - began
    group.barrier()
    return [list(seen), waited]


def every_kind(rank: int) -> list[Command]:
    """Return one command of each kind, distinguishable by rank."""
    return [
        StopRun(f'rank {rank} says "stop" · \n\0 \N{SNOWMAN}', signal=15),
        SplitBatch(rank + 1),
        *(SaveCheckpoint(reason) for reason in SaveReason),
        Evaluate(),
        StopRun("", signal=None),
    ]


def some_commands(rank: int, number: int) -> list[Command]:
    """Return up to three commands, the same at each call."""
    chance = random.Random(f"{rank} {number}")  # noqa: S311  reproducible, not secret
    num_commands = chance.choice((0, 0, 1, 3))
    return [StopRun(f"{rank} {number} {position}" + "x" * chance.randrange(99)) for position in range(num_commands)]


def place(group: ProcessGroup) -> list[int]:
    """Return the rank and the size of ``group``."""
    return [group.rank, group.size]


def agree_once(group: ProcessGroup) -> list[Any]:
    """Return the commands that one call of ``agree`` returned."""
    return [to_json(command) for command in group.agree(every_kind(group.rank))]


def agree_on_every_kind(group: ProcessGroup) -> list[Any]:
    """Return the agreed commands if each rank passes one command of each kind."""
    return _agreed(group, [every_kind(group.rank)])


def agree_on_what_the_last_rank_wants(group: ProcessGroup) -> list[Any]:
    """Return the agreed commands if only the last rank passes a command."""
    return _agreed(group, [[Evaluate()] if group.rank == group.size - 1 else []])


def agree_on_nothing(group: ProcessGroup) -> list[Any]:
    """Return the agreed commands if no rank passes a command."""
    return _agreed(group, [[], [], []])


def agree_in_many_rounds(group: ProcessGroup) -> list[Any]:
    """Return the agreed commands of many rounds."""
    return _agreed(group, [some_commands(group.rank, number) for number in range(_NUM_ROUNDS)])


def text_of(rank: int, number: int) -> str:
    """Return the text that a rank passes in a round: empty in the first, longer on later ranks."""
    return ("\N{SNOWMAN} " + "x" * rank * 99) * number


def gather_texts(group: ProcessGroup) -> list[list[str]]:
    """Return the gathered texts of three rounds."""
    return [list(group.gather(text_of(group.rank, number))) for number in range(3)]


def sum_numbers(group: ProcessGroup) -> list[float]:
    """Return the sums of a large integer, of a fraction and of an empty sequence."""
    return list(group.sum((2**50 + group.rank, 0.5, 0.0)))


def pass_a_barrier(group: ProcessGroup) -> list[float]:
    """Return the times at which this rank reached and left a barrier, by the clock of the machine."""
    time.sleep(0.1 * group.rank)
    came = time.time()
    group.barrier()
    return [came, time.time()]


def agree_while_the_last_rank_is_silent(group: ProcessGroup) -> str | None:
    """Return the error of ``agree`` if the last rank does not call it."""
    if group.rank == group.size - 1:
        return None
    return _error_of(lambda: group.agree([Evaluate()]))


def wait_while_the_last_rank_is_gone(group: ProcessGroup) -> str | None:
    """Return the error of ``barrier`` if the last rank has left."""
    if group.rank == group.size - 1:
        group.close()
        return None
    return _error_of(group.barrier)


def close_on_the_first_rank(group: ProcessGroup) -> str:
    """Close twice on rank 0 only."""
    if group.rank > 0:
        return "open"
    group.close()
    group.close()
    return "closed"


def close_right_after_the_last_round(group: ProcessGroup) -> int:
    """Return the number of agreed commands of a round after which every rank closes immediately."""
    for _ in range(20):
        group.barrier()
    agreed = _agreed(group, [[Evaluate()]])
    group.close()
    return len(agreed)


def _agreed(group: ProcessGroup, rounds: Sequence[Sequence[Command]]) -> list[Any]:
    return [to_json(command) for commands in rounds for command in group.agree(commands)]


def _error_of(collective: Callable[[], object]) -> str | None:
    try:
        collective()
    except TrainingError as error:
        return type(error).__name__
    return None
