"""References to classes by name, which import nothing until they are called."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.broken_library import telling_broken_library

if TYPE_CHECKING:
    from collections.abc import Callable


def lazy(target: str) -> Callable[..., Any]:
    """Return a callable for ``module:attribute`` that imports the module when it is called.

    The container's own string providers import at declaration, which would import torch too.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return lazy_attribute(target)(*args, **kwargs)

    return call


def lazy_attribute(target: str) -> Any:
    """Return the attribute that ``module:attribute`` names; dots are allowed after the colon."""
    module, _, path = target.partition(":")
    with telling_broken_library():
        found = import_module(module)
    return attrgetter(path)(found)
