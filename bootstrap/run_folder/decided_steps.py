"""The steps that a budget in minutes or epochs was turned into, in the record of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


def name_of_minutes(minutes: float) -> str:
    """Return the name under which a run records its steps in ``minutes``; other minutes are another choice."""
    return f"run.budget.minutes={minutes:g}"


def name_of_epochs(epochs: int | Literal[""]) -> str:
    """Return the name under which a run records the steps of its epochs, or how the names of all epochs begin."""
    return f"data.epochs={epochs}"


def budget_in(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``run.budget`` of the settings in ``record``, the content of ``run.json``, with the steps decided for it.

    A record without such settings gives an empty budget.
    """
    budget = dict(_section(record, "settings", "run", "budget"))
    epochs = _section(record, "settings", "data").get("epochs")
    if isinstance(minutes := budget.get("minutes"), int | float):
        name = name_of_minutes(minutes)
    elif isinstance(epochs, int) and not (budget.get("steps") or budget.get("tokens")):
        name = name_of_epochs(epochs)
    else:
        return budget
    choice = record.get("auto", {}).get(name, {}).get("value", "")
    limits = [steps for steps in (budget.get("steps"), int(choice) if choice.isdigit() else None) if steps]
    budget["steps"] = min(limits, default=None)
    return budget


def _section(record: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found: Any = record
    for name in names:
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}
