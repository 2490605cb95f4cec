"""The attempts of a run at its steps, and the changes that new records make to them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from holdfast.domain.data.batch import Spans, UnitName
from holdfast.domain.errors import StateError
from holdfast.ports.ledger import Rejects, StepRecords

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class Attempt(NamedTuple):
    """A recorded attempt at a step with the samples from ``first_sample`` up to ``end_sample``."""

    step: int
    attempt: int
    first_sample: int
    end_sample: int
    is_current: bool


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The changes that a record makes: ``demoted`` and ``revived`` are (step, attempt) pairs.

    ``revived`` also has the index of the step in the record. ``added`` int64 are the indices of the steps that are new,
    and ``attempts`` int64 are their attempts.
    """

    demoted: list[tuple[int, int]]
    revived: list[tuple[int, int, int]]
    added: NDArray[np.int64]
    attempts: NDArray[np.int64]


def changes_of(steps: StepRecords, known: Iterable[Attempt]) -> Changes:
    """Return the changes that recording ``steps`` makes to the attempts ``known`` at any of them."""
    by_step: dict[int, list[Attempt]] = {}
    for attempt in known:
        by_step.setdefault(attempt.step, []).append(attempt)
    demoted, revived, added, attempts = [], [], [], []
    samples = zip(steps.step.tolist(), steps.first_sample.tolist(), steps.end_sample.tolist(), strict=True)
    for index, (step, first, end) in enumerate(samples):
        earlier = by_step.get(step, [])
        same = next((one for one in earlier if (one.first_sample, one.end_sample) == (first, end)), None)
        if same is not None and same.is_current:
            continue
        demoted += [(step, one.attempt) for one in earlier if one.is_current]
        if same is not None:
            revived.append((step, same.attempt, index))
        else:
            added.append(index)
            attempts.append(len(earlier))
    return Changes(demoted, revived, np.array(added, np.int64), np.array(attempts, np.int64))


def check_record(steps: StepRecords, spans: Spans) -> None:
    """Raise ``StateError`` if the steps do not increase, or if a span is in none of their samples."""
    places = np.searchsorted(steps.end_sample, spans.sample, side="right")
    if np.any(np.diff(steps.step) <= 0) or np.any(np.diff(spans.sample) < 0):
        msg = "the steps or spans of a record for the ledger are not in increasing order"
        raise StateError(msg)
    if len(places) and (places[-1] >= len(steps.step) or np.any(spans.sample < steps.first_sample[places])):
        msg = "the ledger was given spans of samples that belong to none of the recorded steps"
        raise StateError(msg)


def spans_of_steps(steps: StepRecords, spans: Spans, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], Spans]:
    """Return the spans of the steps with the indices ``chosen``, and for each the place of its step in ``chosen``."""
    begins = np.searchsorted(spans.sample, steps.first_sample[chosen])
    counts = np.searchsorted(spans.sample, steps.end_sample[chosen]) - begins
    places = np.repeat(np.arange(len(chosen)), counts)
    return places, take(spans, np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum()))


def take(spans: Spans, indices: NDArray[np.int64] | slice) -> Spans:
    """Return the spans with these ``indices`` in this order."""
    names = (field.name for field in fields(spans) if field.name != "units")
    return replace(spans, **{name: getattr(spans, name)[indices] for name in names})


def no_spans() -> Spans:
    """Return no spans."""
    none = np.empty(0, np.int64)
    return Spans(none, none, none, none.astype(np.uint64), none, none, none, units=())


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """The counts of each step, source and epoch, one int64 element of each array for each of them.

    ``place`` is the place of the step among those of a record, and ``source`` is an index of ``sources``.
    """

    place: NDArray[np.int64]
    source: NDArray[np.int64]
    epoch: NDArray[np.int64]
    samples: NDArray[np.int64]
    spans: NDArray[np.int64]
    tokens: NDArray[np.int64]
    sources: tuple[str, ...]


def totals_of(places: NDArray[np.int64], spans: Spans) -> Totals:
    """Return the counts of ``spans``, given the place int64 of the step of each span."""
    sources = tuple(sorted({name.source for name in spans.units}))
    of_unit = np.array([sources.index(name.source) for name in spans.units], np.int64)
    epochs, of_epoch = np.unique(spans.epoch, return_inverse=True)
    keys, group = np.unique(
        (places * len(sources) + of_unit[spans.unit]) * len(epochs) + of_epoch.reshape(-1), return_inverse=True
    )
    samples, of_sample = np.unique(spans.sample, return_inverse=True)  # numbers that are small enough to be multiplied
    sampled = np.unique(group.reshape(-1) * len(samples) + of_sample.reshape(-1)) // max(len(samples), 1)
    tokens = np.zeros(len(keys), np.int64)
    np.add.at(tokens, group.reshape(-1), spans.num_tokens)
    rest, epoch = np.divmod(keys, max(len(epochs), 1))
    place, source = np.divmod(rest, max(len(sources), 1))
    num_samples, num_spans = (np.bincount(of, minlength=len(keys)) for of in (sampled, group.reshape(-1)))
    return Totals(place, source, epochs[epoch], num_samples, num_spans, tokens, sources)


def rejects_from(rows: Iterable[tuple[str, str, int, str, str]]) -> Rejects:
    """Return the rejects with these sources, units, positions, rules and reasons, sorted by them."""
    ordered = sorted(rows)
    names = [UnitName(source, unit) for source, unit, *_ in ordered]
    units = tuple(sorted(set(names)))
    index = {name: number for number, name in enumerate(units)}
    return Rejects(
        np.array([index[name] for name in names], np.int64),
        np.array([row[2] for row in ordered], np.int64),
        tuple(row[3] for row in ordered),
        tuple(row[4] for row in ordered),
        units,
    )


def steps_from(rows: Iterable[tuple[int, int, int, float | None, int]]) -> StepRecords:
    """Return the steps with these numbers, first samples, end samples, losses (None: NaN) and tokens."""
    columns = list(zip(*rows, strict=True)) or [()] * 5
    step, first, end, loss, tokens = columns
    losses = [np.nan if value is None else value for value in loss]
    whole = [np.array(column, np.int64) for column in (step, first, end, tokens)]
    return StepRecords(whole[0], whole[1], whole[2], np.array(losses, np.float64), whole[3])
