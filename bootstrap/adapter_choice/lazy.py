"""References to classes by name, which import nothing until they are called."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from operator import attrgetter
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
        imported = import_module(module)
    return attrgetter(path)(imported)


_LIBRARY = "transformers"


@contextmanager
def telling_broken_library() -> Iterator[None]:
    """Turn a failed import of transformers in the block into a ``ConfigurationError`` that names the remedy.

    transformers imports optional libraries (torchvision), and fails if one does not match the installed torch. Raises
    ``ConfigurationError`` in that case; any other error passes unchanged.
    """
    try:
        yield
    except Exception as error:
        if (sentence := _fault(error)) is None:
            raise
        raise ConfigurationError(sentence) from error


def _fault(error: BaseException) -> str | None:
    """Return a sentence on the package that made the import of transformers fail, None for any other ``error``."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    roots = [_root(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(chain[-1].__traceback__)]
    all_roots = {_root(frame.f_globals.get("__name__", "")) for one in chain for frame, _ in walk_tb(one.__traceback__)}
    if _LIBRARY not in all_roots:
        return None
    after = roots[len(roots) - roots[::-1].index(_LIBRARY) :] if _LIBRARY in roots else roots
    names = [name for name in after if name and name not in sys.stdlib_module_names]
    from holdfast.configs.error_messages import one_line  # which imports the settings

    raised = f"{type(chain[-1]).__name__}: {one_line(str(chain[-1]))}"
    if not names:
        return f"{_LIBRARY} {_version(_LIBRARY)} cannot be imported ({raised}): install a version of it that fits"
    name = packages_distributions().get(names[0], names)[0]
    return (
        f"{_LIBRARY} cannot be imported, because {name} {_version(name)} raised {raised}: uninstall {name}, or install "
        f"the version of it that fits torch {_version('torch')}"
    )


def _root(module: str) -> str:
    return module.partition(".")[0]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of an unknown version"
