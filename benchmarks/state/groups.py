"""Figures of the state: each group lets its ways take turns, and checks first that they keep the same bits."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.report import Figure, interval_of_median
from benchmarks.turns import Contender

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_STALL_OF_COPY = 1.5
_WRITE_OF_RAW = 0.8
_ENCRYPTED_OF_RAW = 0.5
_RESTORE_OF_RAW = 2.0
_ROUNDS_OF_PEERS = 3  # times as many as others: what a disk does by itself differs twofold from save to save

ASYNC_SAVES = ("async_save", "async_save, staged in a thread")


@dataclass(frozen=True, slots=True)
class Plan:
    """The state below ``material``, room for what ways write in ``folder``, and how many rounds count."""

    material: Path
    folder: Path
    rounds: int


Answers = dict[str, list[dict[str, Any]]]


def measure_stall(plan: Plan) -> Sequence[Figure]:
    """Measure how long training waits for a save that goes on beside it."""
    found = _rounds(plan, ("holdfast", "raw", *ASYNC_SAVES), ("stall",), proof="restore")["stall"]
    ours, copy = _median(found["holdfast"]), _median(found["raw"])
    best = min(ASYNC_SAVES, key=lambda name: _median(found[name]))
    theirs = _median(found[best])
    return [
        Figure(
            f"a save beside training: wait / copy of the tensors, median of {plan.rounds}",
            f"{ours / copy:.2f}x ({ours:.3f} / {copy:.3f} s)",
            f"<= {_STALL_OF_COPY}x",
            ours <= _STALL_OF_COPY * copy,
        ),
        Figure(
            f"the same / {best}, the better of two, from its second save on",
            f"{ours / theirs:.2f}x ({ours:.3f} / {theirs:.3f} s)",
            "<= 1x",
            ours <= theirs,
        ),
        Figure("until it is durable, beside training, holdfast", f"{_median(found['holdfast'], 'behind'):.2f} s"),
        Figure(
            "wait, holdfast / copy / " + " / ".join(ASYNC_SAVES),
            " / ".join(f"{_median(answers):.3f}" for answers in found.values()) + " s",
        ),
        Figure(
            "pages that the system had to map for it",
            " / ".join(f"{_median(answers, 'pages'):,.0f}" for answers in found.values()),
        ),
    ]


def measure_files(plan: Plan) -> Sequence[Figure]:
    """Measure what a checkpoint on disk costs beyond the bytes: written, and restored."""
    found = _rounds(plan, ("holdfast", "raw"), ("write", "restore"), proof="restore")
    ours, raw = _rate(found["write"]["holdfast"]), _rate(found["write"]["raw"])
    restore, read = (_median(found["restore"][name]) for name in ("holdfast", "raw"))
    cold = all(answer["is_cold"] for answers in found["restore"].values() for answer in answers)
    return [
        Figure(
            f"store a captured state / write, hash and sync one file, median of {plan.rounds}",
            f"{ours / raw:.2f}x ({ours / 1e6:,.0f} / {raw / 1e6:,.0f} MB/s)",
            f">= {_WRITE_OF_RAW}x",
            ours >= _WRITE_OF_RAW * raw,
        ),
        Figure(
            f"verify and restore / read the file, {'files not in memory' if cold else 'files in memory'}, "
            f"median of {plan.rounds}",
            f"{restore / read:.2f}x ({restore:.2f} / {read:.2f} s)",
            f"<= {_RESTORE_OF_RAW:g}x",
            restore <= _RESTORE_OF_RAW * read,
        ),
    ]


def measure_encrypted(plan: Plan) -> Sequence[Figure]:
    """Measure what encryption costs."""
    found = _rounds(plan, ("encrypted", "raw"), ("write", "restore"), proof="restore")
    ours, raw = _rate(found["write"]["encrypted"]), _rate(found["write"]["raw"])
    restore = _median(found["restore"]["encrypted"])
    return [
        Figure(
            f"store it encrypted / write, hash and sync one plain file, median of {plan.rounds}",
            f"{ours / raw:.2f}x ({ours / 1e6:,.0f} / {raw / 1e6:,.0f} MB/s)",
            f">= {_ENCRYPTED_OF_RAW}x",
            ours >= _ENCRYPTED_OF_RAW * raw,
        ),
        Figure("verify, decrypt and restore it, the decrypted copy on the same disk", f"{restore:.2f} s"),
    ]


def measure_peers(plan: Plan) -> Sequence[Figure]:
    """Measure durable saves, and going on from them, against what others do."""
    names = ("holdfast", "torch.save", "trainer")
    plan = replace(plan, rounds=_ROUNDS_OF_PEERS * plan.rounds)
    found = _rounds(plan, names, ("save", "restore"), proof="restore")
    figures = []
    for command, what in (("save", "capture and save until durable"), ("restore", "read and go on from it")):
        ours = found[command]["holdfast"]
        for name in names[1:]:
            theirs = found[command][name]
            ratios = [ours_now["seconds"] / now["seconds"] for ours_now, now in zip(ours, theirs, strict=True)]
            times, low, high = interval_of_median(ratios)
            figures.append(
                Figure(
                    f"{what} / {_TITLES[name, command]}, median of {plan.rounds} [95 % interval]",
                    f"{times:.2f}x [{low:.2f}, {high:.2f}] ({_median(ours):.2f} / {_median(theirs):.2f} s)",
                    "<= 1x" if name == "torch.save" else "< 1x",
                    times < 1 or (name == "torch.save" and times == 1),
                )
            )
    bare = _median(found["save"]["trainer"], "as_it_is")
    figures.append(Figure("Trainer's save as it is, which syncs nothing", f"{bare:.2f} s"))
    return figures


_TITLES = {
    ("torch.save", "save"): "torch.save and fsync",
    ("torch.save", "restore"): "torch.load and load_state_dict",
    ("trainer", "save"): "Trainer's save and fsync",
    ("trainer", "restore"): "Trainer's resume",
}


def _rounds(plan: Plan, names: Sequence[str], commands: Sequence[str], *, proof: str) -> Mapping[str, Answers]:
    """Return the answers to each of ``commands`` of each way, after a round that warms up and proves equality.

    Each is asked twice and the second answer kept: a virtual machine may take back memory that was free or stood still,
    and whoever touches it first waits for it.
    """
    found: dict[str, Answers] = {command: {name: [] for name in names} for command in commands}
    with ExitStack() as stack:
        ways = []
        for name in names:
            folder = plan.folder / f"{commands[0]}-{name}".replace(" ", "-").replace(",", "")
            told = {"material": str(plan.material), "folder": str(folder)}
            ways.append(stack.enter_context(Contender("benchmarks.state.child", name, told)))
        _prove(ways, commands[0], proof)
        for turn in range(plan.rounds):
            for place in range(len(ways)):
                way = ways[(turn + place) % len(ways)]
                for command in commands:
                    way.ask(command)
                    found[command][way.name].append(way.ask(command))
    return found


def _prove(ways: Sequence[Contender], command: str, proof: str) -> None:
    """Save the state, change it, restore it: raise ``SystemExit`` if a bit differs, or between ways."""
    whole = {way.name: way.ask("digest")["digest"] for way in ways}
    if len(set(whole.values())) > 1:
        message = f"the ways do not begin with the same state, so their times do not compare: {whole}"
        raise SystemExit(message)
    for way in ways:
        way.ask(command)
        if way.name == "raw":
            continue  # it keeps bytes, not a state
        way.ask("spoil")
        is_spoilt = way.ask("digest")["digest"] != whole[way.name]
        way.ask(proof)
        if not is_spoilt or way.ask("digest")["digest"] != whole[way.name]:
            message = f"{way.name} does not restore what it saved, so its times do not count"
            raise SystemExit(message)


def _median(answers: Sequence[Mapping[str, Any]], key: str = "seconds") -> float:
    return float(statistics.median(answer[key] for answer in answers))


def _rate(answers: Sequence[Mapping[str, Any]]) -> float:
    return float(statistics.median(answer["bytes"] / answer["seconds"] for answer in answers))
