"""Completion of a command line by the shell, for commands, options, and settings with their values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

SHELLS = ("bash", "zsh", "fish")
_RUNS = Path("runs")


def complete_if_asked(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end the program if the shell asks how a line goes on; otherwise do nothing."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def script_of(shell: str) -> str:
    """Return the code by which ``shell`` completes the command ``holdfast``; ``shell`` is one of ``SHELLS``."""
    from argcomplete.shell_integration import shellcode

    return shellcode(["holdfast"], True, shell)


def settings_for(prefix: str, **_: Any) -> Iterable[str]:
    """Return the settings that begin with ``prefix``, or the values of the setting before its ``=``."""
    from holdfast.configs.settings_catalog import choices_of, settings_by_name

    name, equals, _value = prefix.partition("=")
    if not equals:
        return [f"{known}=" for known in settings_by_name() if known.startswith(prefix)]
    return [f"{name}={choice}" for choice in choices_of(name)]


def configurations_for(prefix: str, **_: Any) -> Iterable[str]:
    """Return the configurations of this package and the YAML files that begin with ``prefix``."""
    from holdfast.configs.ready_configurations import ready_names

    files = (f"{path}/" if path.is_dir() else str(path) for path in _paths(prefix))
    return [*ready_names(), *(name for name in files if name.endswith((".yaml", ".yml", "/")))]


def runs_for(prefix: str, **_: Any) -> Iterable[str]:
    """Return the names and folders of runs and the other folders that begin with ``prefix``."""
    runs = [*_RUNS.iterdir()] if _RUNS.is_dir() else []
    return [*(run.name for run in runs), *map(str, runs), *(str(path) for path in _paths(prefix) if path.is_dir())]


def _paths(prefix: str) -> Iterator[Path]:
    folder = Path(prefix) if prefix.endswith("/") else Path(prefix).parent
    yield from folder.iterdir() if folder.is_dir() else ()
