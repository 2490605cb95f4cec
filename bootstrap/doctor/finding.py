"""The result of a check of this machine, and the check that gives it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.domain.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class CheckVerdict(StrEnum):
    """The meaning of a finding: an error keeps a run from working, a warning may slow it down or lose a copy."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the thing that was checked, its verdict, what was found and, if not ok, what to do."""

    name: str
    verdict: CheckVerdict
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check that yields its findings one after another, and may take ``seconds``."""

    name: str
    look: Callable[[], Iterable[Finding]]
    seconds: float = 10.0


def good(name: str, detail: str) -> Finding:
    """Return the finding that ``name`` is in order."""
    return Finding(name, CheckVerdict.OK, detail)


def doubtful(name: str, detail: str, remedy: str) -> Finding:
    """Return a finding that lets a run work, but not well."""
    return Finding(name, CheckVerdict.WARNING, detail, remedy)


def bad(name: str, detail: str, remedy: str) -> Finding:
    """Return a finding that keeps a run from working."""
    return Finding(name, CheckVerdict.ERROR, detail, remedy)


def failed(name: str, error: BaseException) -> Finding:
    """Return the finding that the check ``name`` raised ``error``; Holdfast's own errors end with their remedy."""
    if isinstance(error, TrainingError):
        detail, _, remedy = " ".join(str(error).split()).rpartition(": ")
        return bad(name, detail or remedy, remedy if detail else "correct the setting")
    detail = f"the check failed with {type(error).__name__}: {' '.join(str(error).split())}"
    return bad(name, detail, "remove the cause, and run the command again")
