"""The steps that a budget in minutes was turned into, in the record of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def name_of_choice(minutes: float) -> str:
    """Return the name under which a run records its steps in ``minutes``; other minutes are another choice."""
    return f"run.budget.minutes={minutes:g}"


def budget_in(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``run.budget`` of the settings in ``record``, the content of ``run.json``, with the steps decided for it.

    A record without such settings gives an empty budget.
    """
    found: Any = record.get("settings", {})
    for name in ("run", "budget"):
        found = found.get(name, {}) if isinstance(found, dict) else {}
    budget = dict(found) if isinstance(found, dict) else {}
    if isinstance(minutes := budget.get("minutes"), int | float):
        choice = record.get("auto", {}).get(name_of_choice(minutes), {}).get("value", "")
        limits = [steps for steps in (budget.get("steps"), int(choice) if choice.isdigit() else None) if steps]
        budget["steps"] = min(limits, default=None)
    return budget
