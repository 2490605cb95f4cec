"""Files of settings to begin with: copies of the ready configurations, which a user changes."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path

from holdfast.configs.shipped_files import FOLDER, list_ready, ready_names
from holdfast.domain.errors import ConfigurationError

_SCHEMA = "settings.schema.json"


def list_recipes() -> str:
    """Return a line for each recipe: its name and its purpose."""
    return list_ready()


def write_recipe(name: str, target: Path | None = None) -> Path:
    """Write the recipe ``name`` to ``target``, by default ``<name>.yaml`` here; return the path of the new file.

    Its first line tells editors the URI of the JSON Schema of this installation, and its examples name the new file,
    quoted for a shell.
    Raises ``ConfigurationError`` for an unknown name, and if the file exists or cannot be written.
    """
    name = name.removesuffix(".yaml")
    if name not in ready_names():
        near = difflib.get_close_matches(name, ready_names(), 1)
        msg = f"there is no recipe called {name}: " + (f"did you mean {near[0]}? " if near else "")
        msg += "init without a name lists them"
        raise ConfigurationError(msg)
    path = target or Path(f"{name}.yaml")
    _, *lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(lines).replace(f"configs/{name}.yaml", shlex.quote(str(path)))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"# yaml-language-server: $schema={(FOLDER / _SCHEMA).as_uri()}\n{text}")
    except FileExistsError:
        msg = f"{path} exists and was left as it is: choose another file with --output"
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"{path} cannot be written, {(error.strerror or str(error)).lower()}: choose another file with --output"
        raise ConfigurationError(msg) from error
    return path
