"""Settings written as command line options: ``--optimizer.clip=2`` means ``optimizer.clip=2``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def as_settings(arguments: Sequence[str]) -> list[str]:
    """Return ``arguments`` with ``--a.b=c`` and ``--a.b c`` as ``a.b=c``; dashes within a name become underscores."""
    return [*_converted(iter(arguments))]


def _converted(arguments: Iterator[str]) -> Iterator[str]:
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or "." not in name:
            yield argument
            continue
        name = name.replace("-", "_")
        if equals:
            yield f"{name}={value}"
            continue
        following = next(arguments, None)
        if following is None or following.startswith("--"):
            yield name  # sets nothing, and is reported as an error
            if following is not None:
                yield from _converted(iter((following, *arguments)))
            return
        yield f"{name}={following}"


def hint_for(option: str) -> str:
    """Return a hint on how settings are written; its example is the setting whose name is nearest to ``option``."""
    from holdfast.configs.settings_catalog import nearest_name

    name, _, value = option.lstrip("-").partition("=")
    nearest = nearest_name(name.replace("-", "_"))
    example = f"{nearest}={value or '...'}" if nearest else "optimizer.learning_rate=1e-3"
    return f"settings are written key.path=value, such as {example}"
