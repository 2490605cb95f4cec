"""Trains language models without losing the run.

>>> from holdfast import TrainSettings, build
>>> progress = build(TrainSettings()).run()

The folders ``domain``, ``ports``, ``adapters``, ``application``, ``bootstrap`` and ``configs`` of the repository are
packages of this one: ``holdfast.domain`` and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.bootstrap.adapter_choice.part_overrides import Overrides, RunOptions
    from holdfast.bootstrap.async_run import AsyncRun, EventStream, build_async
    from holdfast.bootstrap.run import Run, build
    from holdfast.configs.settings import TrainSettings
    from holdfast.configs.settings_layers import load_settings

__all__ = [
    "AsyncRun",
    "EventStream",
    "Overrides",
    "Run",
    "RunOptions",
    "TrainSettings",
    "__version__",
    "build",
    "build_async",
    "load_settings",
]

_HOMES = {
    "AsyncRun": "holdfast.bootstrap.async_run",
    "EventStream": "holdfast.bootstrap.async_run",
    "build_async": "holdfast.bootstrap.async_run",
    "Run": "holdfast.bootstrap.run",
    "build": "holdfast.bootstrap.run",
    "Overrides": "holdfast.bootstrap.adapter_choice.part_overrides",
    "RunOptions": "holdfast.bootstrap.adapter_choice.part_overrides",
    "TrainSettings": "holdfast.configs.settings",
    "load_settings": "holdfast.configs.settings_layers",
}


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__`` when it is asked for: ``--help`` needs none of them."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
