"""Loads the function of the transform ``score`` from an installed package."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.plugins import load_plugin
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_score_function(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``ScoreTransform`` for the ``options`` of a transform ``score`` in the settings.

    The option ``function`` names an entry point of the group ``holdfast.score``, which is loaded. Its fingerprint is
    the entry point with the name and the version of its package. Raises ``ConfigurationError`` if the option is
    missing, if there is no such entry point, or if it is not callable, and ``PluginFailed`` if its import fails.
    """
    name = options.get("function")
    if not isinstance(name, str):
        msg = f"transform 'score' needs function, the name of an entry point of the group holdfast.score, not {name!r}"
        raise ConfigurationError(msg)
    if "function_fingerprint" in options:
        msg = "transform 'score' has no option function_fingerprint: it is that of the package that holds the function"
        raise ConfigurationError(msg)
    function = load_plugin("score", name)
    if not callable(function):
        msg = f"the entry point '{name}' of holdfast.score gives a {type(function).__name__}, which is no function"
        raise ConfigurationError(msg)
    return {**options, "function": function, "function_fingerprint": _fingerprint_of(name)}


def _fingerprint_of(name: str) -> str:
    [point, *_] = entry_points(group="holdfast.score", name=name)
    package = "no package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return f"{point.value} of {package}"
