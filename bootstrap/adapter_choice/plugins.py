"""Adapters and handlers from other packages, by entry point."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract, signature
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from holdfast.configs.error_messages import one_line
from holdfast.domain.errors import ConfigurationError, PluginFailed, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_GROUP = "holdfast."


def check_options(port: str, kind: str, plugin: Any, *arguments: Any, **options: Any) -> None:
    """Raise ``ConfigurationError`` if ``plugin`` cannot be called with ``arguments`` and ``options``."""
    try:
        signature(plugin).bind(*arguments, **options)
    except TypeError as error:
        msg = f"the options of {port} '{kind}' do not fit: {error}"
        raise ConfigurationError(msg) from error
    except ValueError:  # what is written in C may not tell its parameters: the call itself checks them
        return


def make_plugin(
    port: str, kind: str, plugin: Any, options: Mapping[str, Any], *, is_one: Callable[[Any], bool], otherwise: str
) -> Any:
    """Return the object that ``plugin``, built in or from an entry point, makes of ``options``.

    Raises ``ConfigurationError`` if the options do not fit, or if ``is_one`` rejects the object. ``otherwise``
    completes the sentence of the error after the type of the object.
    """
    check_options(port, kind, plugin, **options)
    try:
        made = build_plugin(port, kind, plugin, **options)
    except (TypeError, ValueError, PluginFailed) as failed:
        error = failed.__cause__ if isinstance(failed, PluginFailed) else failed
        if not isinstance(error, TypeError | ValueError):
            raise
        msg = f"the options of {port} '{kind}' do not fit: {error}"
        raise ConfigurationError(msg) from error
    if not is_one(made):
        msg = f"the entry point '{kind}' of holdfast.{port} gives a {type(made).__name__}{otherwise}"
        raise ConfigurationError(msg)
    return made


def has_methods(made: object, *names: str) -> bool:
    """Return whether ``made`` has methods of these ``names``."""
    return all(callable(getattr(made, name, None)) for name in names)


def build_plugin(port: str, kind: str, plugin: Any, /, *arguments: Any, **options: Any) -> Any:
    """Return the object that ``plugin`` makes of ``arguments`` and ``options``.

    Raises ``PluginFailed`` if a plugin from an entry point raises an error that is not one of Holdfast's own.
    """
    try:
        return plugin(*arguments, **options)
    except TrainingError:
        raise
    except (Exception, SystemExit) as error:
        if (point := _points(port).get(kind)) is None:
            raise
        raise PluginFailed(_failure(point, error, "when it was made")) from error


def blame(error: BaseException) -> str | None:
    """Return a sentence on the entry point whose code raised ``error`` in use, None if other code raised it."""
    installed = entry_points()
    ours = (point for group in installed.groups if group.startswith(_GROUP) for point in installed.select(group=group))
    points = {point.module.partition(".")[0]: point for point in ours}
    roots = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)]
    owner = next((points[root] for root in reversed(roots) if root in points), None)
    return None if owner is None else _failure(owner, error, "in use")


def load_plugin(port: str, kind: str, *, built_in: Collection[str] = ()) -> Any:
    """Return the object of the entry point ``kind`` in the group ``holdfast.<port>``; no other one is imported.

    Raises ``ConfigurationError`` if there is none, if it has the name of a built-in adapter, or if it lacks methods of
    its port, and ``PluginFailed`` if its import raises any error.
    """
    points = _points(port)
    if shadowed := sorted(points.keys() & set(built_in)):
        msg = f"an installed package offers {port} '{shadowed[0]}', which is built in: it must choose another name"
        raise ConfigurationError(msg)
    if kind in points:
        try:
            plugin = points[kind].load()
        except (Exception, SystemExit) as error:
            raise PluginFailed(_failure(points[kind], error, "when it was imported")) from error
        if isabstract(plugin):
            msg = (
                f"{_called(points[kind])}, lacks {', '.join(sorted(plugin.__abstractmethods__))}: write them, or "
                f"derive {plugin.__name__} from the base of its port in holdfast.ports.basic, which implements the "
                "optional methods"
            )
            raise ConfigurationError(msg)
        return plugin
    names = sorted({*built_in, *points})
    near = get_close_matches(kind, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
    msg = f"no {port} is called '{kind}' here, built in or under the entry points holdfast.{port}: {hint}"
    raise ConfigurationError(msg)


def _points(port: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"{_GROUP}{port}")}


def _failure(point: EntryPoint, error: BaseException, when: str) -> str:
    text = one_line(str(error))
    raised = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{_called(point)}, raised {raised} {when}"


def _called(point: EntryPoint) -> str:
    package = "no installed package" if point.dist is None else f"the package {point.dist.name} {point.dist.version}"
    return f"the entry point '{point.name}' of {point.group}, which is of {package}"
