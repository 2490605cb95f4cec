"""The only place that knows everything: it reads the settings, chooses the adapters and builds a run.

>>> from holdfast.bootstrap import build
>>> from holdfast.configs.settings import TrainSettings
>>> progress = build(TrainSettings()).run()
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.bootstrap.run import Run, build

__all__ = ["Run", "build"]

_HOME = Path(__file__).resolve().parent.parent

for _name in ("domain", "ports", "adapters", "application", "configs"):
    _spec = importlib.util.find_spec(_name)
    if _spec is None or _spec.origin is None or Path(_spec.origin).resolve().parent.parent != _HOME:
        _found = "missing" if _spec is None else f"at {_spec.origin}"
        _msg = f"holdfast's package '{_name}' is {_found} and not in {_HOME}: another package of that name hides it"
        raise ImportError(_msg)


def __getattr__(name: str) -> Any:
    """Import ``build`` and ``Run`` when they are asked for: ``--help`` needs neither."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from holdfast.bootstrap import run

    return getattr(run, name)
