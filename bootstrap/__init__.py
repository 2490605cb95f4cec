"""The composition root: reads the settings, chooses the adapters and builds a run.

>>> from holdfast.bootstrap import build
>>> from holdfast.configs.settings import TrainSettings
>>> progress = build(TrainSettings()).run()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.bootstrap.run import Run, build

__all__ = ["Run", "build"]


def __getattr__(name: str) -> Any:
    """Import ``build`` or ``Run`` on first use, as ``--help`` needs neither; raises ``AttributeError`` otherwise."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from holdfast.bootstrap import run

    return run.build if name == "build" else run.Run
