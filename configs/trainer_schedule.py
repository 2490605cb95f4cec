"""Translates the learning-rate schedules of Hugging Face Trainer into settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_COSINES = ("cosine", "cosine_with_restarts", "cosine_with_min_lr", "cosine_warmup_with_min_lr")
_HALF_WAVE = {"cosine_with_restarts": 1}
_KINDS = ("constant", "constant_with_warmup", "linear", "polynomial", "warmup_stable_decay", *_COSINES)
# The options of each kind that have one value here, that of transformers.
_FIXED: Mapping[str, Mapping[str, Any]] = {
    **{kind: {"num_cycles": _HALF_WAVE.get(kind, 0.5)} for kind in _COSINES},
    "polynomial": {"power": 1.0},
    "warmup_stable_decay": {"warmup_type": "linear", "num_cycles": 0.5, "num_stable_steps": None},
}
_FLOORS = ("min_lr", "min_lr_rate", "min_lr_ratio", "lr_end")


def schedule_of(
    kind: Any, options: Mapping[str, Any], *, rate: float, warmup: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return ``optimizer.schedule`` for a schedule of Trainer, and a reason for each argument that it has no value for.

    ``rate`` is the peak, ``warmup`` the steps of the warm-up.
    """
    if kind not in _KINDS:
        msg = f"there is no {kind!r}, and the settings keep the default: set optimizer.schedule"
        return {"warmup_steps": warmup}, {"lr_scheduler_type": msg}
    if kind in ("constant", "constant_with_warmup"):
        return {"kind": "constant", "warmup_steps": warmup if kind != "constant" else 0}, _odd(kind, options)
    floor = {**({"lr_end": 1e-7} if kind == "polynomial" else {}), **_given(options)}
    found: dict[str, Any] = {"warmup_steps": warmup, "floor": _floor(floor, rate)}
    if kind == "warmup_stable_decay":
        shape, steps = options.get("decay_type", "cosine"), options.get("num_decay_steps")
        found = {"kind": "wsd", **found, "decay_steps": steps, "decay_shape": shape}
        if shape not in ("linear", "1-sqrt") or steps is None:
            msg = "wsd needs num_decay_steps, and a decay_type linear or 1-sqrt (cosine, the default, has no setting)"
            return {"warmup_steps": warmup}, {"lr_scheduler_kwargs": f"{msg}: set optimizer.schedule"}
        odd = _odd(kind, options)
        if found["floor"] and warmup:
            odd = {"lr_scheduler_kwargs": "the warm-up begins at 0, and not at min_lr_ratio", **odd}
        return found, odd
    return {"kind": "cosine" if kind in _COSINES else "linear", **found}, _odd(kind, options)


def warmup_of(given: Mapping[str, Any], num_steps: int | None) -> int | None:
    """Return the steps of the warm-up, as Trainer takes them; None for a share of an unknown number of steps.

    ``warmup_steps`` comes before ``warmup_ratio``; below 1 it is a share too.
    """
    steps = given.get("warmup_steps") or 0
    share = steps if 0 < steps < 1 else 0 if steps else given.get("warmup_ratio") or 0
    if not share:
        return int(steps)
    return None if num_steps is None else math.ceil(num_steps * share)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: options[name] for name in _FLOORS if options.get(name) is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            msg = f"lr_scheduler_kwargs.{name} takes a number, and this is {value!r}"
            raise ConfigurationError(msg)
    return given


def _floor(options: Mapping[str, Any], rate: float) -> float:
    """Return the rate at the end as a share of the peak ``rate``."""
    for name, value in options.items():
        return float(value) / rate if rate and name in ("min_lr", "lr_end") else float(value)
    return 0.0


def _odd(kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return a reason for options of the schedule ``kind`` that have no setting."""
    known = {
        "polynomial": ("lr_end",),
        "warmup_stable_decay": ("num_decay_steps", "decay_type", "min_lr_ratio"),
        "cosine_with_min_lr": ("min_lr", "min_lr_rate"),
        "cosine_warmup_with_min_lr": ("min_lr", "min_lr_rate"),
    }.get(kind, ())
    fixed = _FIXED.get(kind, {})
    odd = [
        name
        for name, value in options.items()
        if value is not None and name not in known and not (name in fixed and value == fixed[name])
    ]
    return {"lr_scheduler_kwargs": f"optimizer.schedule has no {', '.join(odd)} for {kind}"} if odd else {}
