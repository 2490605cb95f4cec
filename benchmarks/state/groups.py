"""Figures of the state: each group lets its ways take turns, and checks first that they keep the same bits."""

from __future__ import annotations

import operator
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from benchmarks.report import Figure, interval_of_median
from benchmarks.turns import Contender

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_MEETS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge}

ASYNC_SAVES = ("async_save", "async_save, staged in a thread")


@dataclass(frozen=True, slots=True)
class Plan:
    """The state below ``material``, room for what ways write in ``folder``, how many rounds count, and the pause.

    Ways that ``stays`` share this process, which is quick and no measurement.
    """

    material: Path
    folder: Path
    rounds: int
    rest: float
    stays: bool = False


class Way(Protocol):
    """A way of keeping the state that answers commands."""

    name: str

    def ask(self, command: str) -> dict[str, Any]:
        """Let it do ``command``; return what it found."""
        ...


@final
class _WayHere(Way):
    def __init__(self, name: str, way: object) -> None:
        self.name = name
        self._way = way

    def ask(self, command: str) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self._way, command)()
        return found


Answers = dict[str, list[dict[str, Any]]]


def measure_stall(plan: Plan) -> Sequence[Figure]:
    """Measure how long training waits for a save that goes on beside it."""
    found = _rounds(plan, ("holdfast", "raw", *ASYNC_SAVES), ("stall",), saved_by="stall")["stall"]
    waits = {name: _seconds(answers) for name, answers in found.items()}
    best = min(ASYNC_SAVES, key=lambda name: statistics.median(waits[name]))
    what = "a save beside training: wait"
    return [
        _compared(f"{what} / copy of the tensors", waits["holdfast"], waits["raw"], "s", "<= 1.5"),
        _compared(f"{what} / {best}, the better of two", waits["holdfast"], waits[best], "s", "<= 1"),
        Figure("until it is durable, beside training, holdfast", f"{_median(found['holdfast'], 'behind'):.2f} s"),
        Figure(
            "wait, holdfast / copy / " + " / ".join(ASYNC_SAVES),
            " / ".join(f"{statistics.median(seconds):.3f}" for seconds in waits.values()) + " s",
        ),
        Figure(
            "pages that the system had to map for it",
            " / ".join(f"{_median(answers, 'pages'):,.0f}" for answers in found.values()),
        ),
    ]


def measure_files(plan: Plan) -> Sequence[Figure]:
    """Measure what a checkpoint on disk costs beyond the bytes: written, and restored."""
    found = _rounds(plan, ("holdfast", "raw"), ("write", "restore"), saved_by="write")
    ours, raw = _rates(found["write"]["holdfast"]), _rates(found["write"]["raw"])
    restore, read = (_seconds(found["restore"][name]) for name in ("holdfast", "raw"))
    cold = all(answer["is_cold"] for answers in found["restore"].values() for answer in answers)
    where = "files not in memory" if cold else "files in memory"
    return [
        _compared("store a captured state / write, hash and sync one file", ours, raw, "GB/s", ">= 0.8"),
        _compared(f"verify and restore / read the file, {where}", restore, read, "s", "<= 2"),
    ]


def measure_encrypted(plan: Plan) -> Sequence[Figure]:
    """Measure what encryption costs."""
    found = _rounds(plan, ("encrypted", "raw"), ("write", "restore"), saved_by="write")
    ours, raw = _rates(found["write"]["encrypted"]), _rates(found["write"]["raw"])
    restore = _median(found["restore"]["encrypted"], "seconds")
    return [
        _compared("store it encrypted / write, hash and sync one plain file", ours, raw, "GB/s", ">= 0.5"),
        Figure("verify, decrypt and restore it, the decrypted copy on the same disk", f"{restore:.2f} s"),
    ]


def measure_saves(plan: Plan) -> Sequence[Figure]:
    """Measure durable saves against those of others."""
    found = _rounds(plan, ("holdfast", *_PEERS), ("save",), saved_by="save")["save"]
    bare = _median(found["trainer"], "as_it_is")
    return [
        *_against_peers("capture and save until durable", found, ("torch.save and fsync", "Trainer's save and fsync")),
        Figure("Trainer's save as it is, which syncs nothing", f"{bare:.2f} s"),
    ]


def measure_restores(plan: Plan) -> Sequence[Figure]:
    """Measure going on from what was saved against how others do it.

    All are held up by the disk, so they are close: ``torch.load`` reads the same bytes and verifies none of them.
    """
    found = _rounds(plan, ("holdfast", *_PEERS), ("restore",), saved_by="save")["restore"]
    return _against_peers("read and go on from it", found, ("torch.load and load_state_dict", "Trainer's resume"))


_PEERS = {"torch.save": "<= 1", "trainer": "< 1"}


def _against_peers(what: str, found: Answers, titles: Sequence[str]) -> Sequence[Figure]:
    ours = _seconds(found["holdfast"])
    return [
        _compared(f"{what} / {title}", ours, _seconds(found[name]), "s", goal)
        for title, (name, goal) in zip(titles, _PEERS.items(), strict=True)
    ]


def _rounds(plan: Plan, names: Sequence[str], commands: Sequence[str], *, saved_by: str) -> Mapping[str, Answers]:
    """Return the answers to each of ``commands`` of each way, after a round that warms up and proves equality.

    ``saved_by`` is the command that leaves what ``restore`` reads.

    Each is asked twice and the second answer kept: a virtual machine gives memory back to its host some 2 s after it
    was freed, and whoever wants it then waits. With a rest between, nothing waits to be given back when the second
    begins; what that frees it takes again at once, as on a machine that keeps its memory.
    """
    found: dict[str, Answers] = {command: {name: [] for name in names} for command in commands}
    with ExitStack() as stack:
        ways = []
        for name in names:
            folder = plan.folder / f"{saved_by}-{name}".replace(" ", "-").replace(",", "")
            ways.append(_open(plan, name, folder, stack))
        _prove(ways, saved_by)
        for turn in range(plan.rounds):
            for way in _order(ways, turn):
                if saved_by not in commands:
                    way.ask(saved_by)  # anew, as how fast a file is read depends on where the disk has put it
                    time.sleep(plan.rest)
                for command in commands:
                    way.ask(command)
                    time.sleep(plan.rest)
                    found[command][way.name].append(way.ask(command))
    return found


def _open(plan: Plan, name: str, folder: Path, stack: ExitStack) -> Way:
    if plan.stays:
        from benchmarks.state.ways import WAYS

        return _WayHere(name, WAYS[name](plan.material, folder))
    told = {"material": str(plan.material), "folder": str(folder)}
    return stack.enter_context(Contender("benchmarks.state.child", name, told))


def _order(ways: Sequence[Way], turn: int) -> Sequence[Way]:
    """Return the order of a round: another begins each time, and three ways follow each other equally often."""
    first = turn % len(ways)
    order = [*ways[first:], *ways[:first]]
    return order[::-1] if turn // len(ways) % 2 else order


def _prove(ways: Sequence[Way], saved_by: str) -> None:
    """Save the state, change it, restore it: raise ``SystemExit`` if a bit differs, or between ways."""
    whole = {way.name: way.ask("digest")["digest"] for way in ways}
    if len(set(whole.values())) > 1:
        message = f"the ways do not begin with the same state, so their times do not compare: {whole}"
        raise SystemExit(message)
    for way in ways:
        way.ask(saved_by)
        if way.name == "raw":
            continue  # it keeps bytes, not a state
        way.ask("spoil")
        is_spoilt = way.ask("digest")["digest"] != whole[way.name]
        way.ask("restore")
        if not is_spoilt or way.ask("digest")["digest"] != whole[way.name]:
            message = f"{way.name} does not restore what it saved, so its times do not count"
            raise SystemExit(message)


def _compared(what: str, ours: Sequence[float], theirs: Sequence[float], unit: str, goal: str) -> Figure:
    """Tell how many times theirs ours is, by pairs of the same round, as this machine's speed drifts."""
    times, low, high = interval_of_median([mine / other for mine, other in zip(ours, theirs, strict=True)])
    relation, limit = goal.split()
    medians = f"{statistics.median(ours):.3g} / {statistics.median(theirs):.3g} {unit}"
    return Figure(
        f"{what}, median of {len(ours)} [95 % interval]",
        f"{times:.2f}x [{low:.2f}, {high:.2f}] ({medians})",
        f"{goal}x",
        _MEETS[relation](times, float(limit)),
    )


def _median(answers: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(answer[key] for answer in answers))


def _seconds(answers: Sequence[Mapping[str, Any]]) -> Sequence[float]:
    return [answer["seconds"] for answer in answers]


def _rates(answers: Sequence[Mapping[str, Any]]) -> Sequence[float]:
    return [answer["bytes"] / answer["seconds"] / 1e9 for answer in answers]
