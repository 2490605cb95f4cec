"""Adapters and handlers from other packages, by entry point."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from typing import TYPE_CHECKING, Any

from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def check_options(port: str, kind: str, plugin: Any, *arguments: Any, **options: Any) -> None:
    """Raise ``ConfigurationError`` if ``plugin`` cannot be called with ``arguments`` and ``options``."""
    try:
        signature(plugin).bind(*arguments, **options)
    except TypeError as error:
        msg = f"the options of {port} '{kind}' do not fit: {error}"
        raise ConfigurationError(msg) from error


def make_plugin(
    port: str, kind: str, plugin: Any, options: Mapping[str, Any], *, is_one: Callable[[Any], bool], otherwise: str
) -> Any:
    """Return what ``plugin``, built in or from an entry point, makes of ``options``.

    Raises ``ConfigurationError`` if they do not fit, or if it is not what ``is_one`` says: ``otherwise`` completes the
    sentence on what the entry point gives.
    """
    check_options(port, kind, plugin, **options)
    try:
        made = plugin(**options)
    except (TypeError, ValueError) as error:
        msg = f"the options of {port} '{kind}' do not fit: {error}"
        raise ConfigurationError(msg) from error
    if not is_one(made):
        msg = f"the entry point '{kind}' of holdfast.{port} gives a {type(made).__name__}{otherwise}"
        raise ConfigurationError(msg)
    return made


def load_plugin(port: str, kind: str, *, built_in: Collection[str] = ()) -> Any:
    """Return what the entry point ``kind`` of the group ``holdfast.<port>`` names; only this one is imported.

    Raises ``ConfigurationError`` if there is none, or if it bears the name of a built-in one; its own import errors
    come through as they are.
    """
    found: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=f"holdfast.{port}")}
    if shadowed := sorted(found.keys() & set(built_in)):
        msg = f"an installed package offers {port} '{shadowed[0]}', which is built in: it must choose another name"
        raise ConfigurationError(msg)
    if kind in found:
        return found[kind].load()
    names = sorted({*built_in, *found})
    near = get_close_matches(kind, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
    msg = f"no {port} is called '{kind}' here, built in or under the entry points holdfast.{port}: {hint}"
    raise ConfigurationError(msg)
