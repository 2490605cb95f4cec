"""The reproducibility of a resumed run, and the conditions that it depends on."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# the values of conditions that checkpoints of earlier versions do not record
AS_BEGUN: Mapping[str, str] = {"data": "as the run began"}


class Reproducibility(StrEnum):
    """The degree to which a run equals the same run without interruptions.

    ``BITWISE``: equal to the bit. ``NUMERICAL``: the same samples in the same order, equal up to rounding.
    """

    BITWISE = "bitwise"
    NUMERICAL = "numerical"


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Sequence[str]:
    """Return each condition that is known on both sides and differs, as a clause such as "ranks was 1 and is 2"."""
    before = {**AS_BEGUN, **before} if before else before
    differing = [name for name in before if name in now and now[name] != before[name]]
    return [f"{name} was {before[name]} and is {now[name]}" for name in differing]


def reproducibility_of(conditions: Mapping[str, str]) -> Reproducibility:
    """Return the reproducibility of a run that begins under ``conditions``."""
    return Reproducibility.NUMERICAL if conditions.get("deterministic") == "False" else Reproducibility.BITWISE
