"""The configurations that come with this package, and copies of them for a user to change."""

from __future__ import annotations

import difflib
import shlex
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.configs.sections.data import PythonLibraryDataSettings
from holdfast.configs.sections.distributed import MeshSettings, mesh_settings
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.sections.base import Section
    from holdfast.configs.sections.data import DataSettings
    from holdfast.configs.sections.distributed import DistributedSettings
    from holdfast.configs.sections.model import ModelSettings
    from holdfast.configs.sections.optimizer import OptimizerSettings
    from holdfast.configs.sections.run import RunSettings

FOLDER = Path(__file__).resolve().parent
_SCHEMA = "settings.schema.json"
_PROGRAM = "python -m application"  # in the comments of the configurations


def find_file(path: Path) -> Path:
    """Return ``path``, or the file of this package with the same name if there is no file at ``path``.

    ``own_text``, ``own_text.yaml`` and ``configs/own_text.yaml`` all name the file of this package.
    """
    if path.exists() or path.is_absolute() or path.parent not in (Path(), Path("configs")):
        return path
    named = path.name if path.suffix else f"{path.name}.yaml"
    shipped = FOLDER / named
    return shipped if shipped.suffix in (".yaml", ".json") and shipped.is_file() else path


def shown_name(path: Path) -> str:
    """Return the name of a file that ``find_file`` found, for messages."""
    file = find_file(path)
    return str(path) if file == path else f"{file.name} of this package"


def ready_names() -> list[str]:
    """Return the names of the configurations of this package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def list_ready() -> str:
    """Return a line for each configuration: its name and its purpose."""
    lines = [(name, _purpose(FOLDER / f"{name}.yaml")) for name in ready_names()]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:{width}}{purpose}" for name, purpose in lines)


def meant_file(path: Path) -> str:
    """Return "; did you mean ...?" with the file beside ``path`` or the configuration of the nearest name, or ""."""
    try:
        beside = [file.name for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml")]
    except OSError:
        beside = []
    own = difflib.get_close_matches(path.name, beside, 1, cutoff=0.8)
    ready = difflib.get_close_matches(path.name.removesuffix(".yaml"), ready_names(), 1, cutoff=0.8)
    near = [*(str(path.with_name(name)) for name in own), *ready]
    return f"; did you mean {near[0]}?" if near else ""


def write_copy(name: str, target: Path | None = None, program: str = _PROGRAM) -> Path:
    """Write a copy of the configuration ``name`` to ``target``, by default ``<name>.yaml`` here; return its path.

    Its first line tells editors the URI of the JSON Schema of this installation. Its examples name the new file, quoted
    for a shell, and call this program by ``program``. Raises ``ConfigurationError`` for an unknown name, and if the
    file exists or cannot be written.
    """
    name = name.removesuffix(".yaml")
    if name not in ready_names():
        near = difflib.get_close_matches(name, ready_names(), 1)
        msg = f"there is no configuration called {name}: " + (f"did you mean {near[0]}? " if near else "")
        msg += "init without a name lists them"
        raise ConfigurationError(msg)
    path = target or Path(f"{name}.yaml")
    _, *lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(lines).replace(f"configs/{name}.yaml", shlex.quote(str(path))).replace(_PROGRAM, program)
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


def _purpose(path: Path) -> str:
    """Return the first sentence of the comment that the file begins with, behind the line for editors."""
    comment: list[str] = []
    _, *lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if not line.startswith("# "):
            break
        comment.append(line.removeprefix("# "))
    return " ".join(comment).split(". ")[0].split(": ")[0].rstrip(".:") + "."


STEPS = 150
SEQUENCE_LENGTH = 256
ALGORITHM, LEARNING_RATE = "muon", 1e-2
HOLDOUT: Mapping[str, object] = MappingProxyType({"holdout": 0.05, "holdout_by": "similar_documents"})
FORMER_HOLDOUT: Mapping[str, object] = MappingProxyType({"holdout": 0.02, "holdout_by": "document"})
"""The hold-out of runs that earlier versions began; their records do not have ``holdout_by``."""


def quickstart_defaults(
    run: RunSettings,
    data: DataSettings,
    model: ModelSettings,
    optimizer: OptimizerSettings,
    distributed: DistributedSettings,
) -> dict[str, Section]:
    """Return the sections that differ on the Python standard library from the defaults on other data.

    Short rows, few steps and Muon reach a lower loss than AdamW in half of the time (docs/benchmarks.md#quickstart). A
    setting that was given stays as it is, and Muon is chosen for a new model on the usual optimizer only. On other data
    nothing is returned.
    """
    if not isinstance(data, PythonLibraryDataSettings):
        return {}
    sections: dict[str, Section] = {}
    length = {} if "sequence_length" in data.model_fields_set else {"sequence_length": SEQUENCE_LENGTH}
    sections["data"] = with_holdout(data.model_copy(update=length), HOLDOUT)
    if "budget" not in run.model_fields_set:
        budget = run.budget.model_copy(update={"steps": STEPS})
        sections["run"] = run.model_copy(update={"budget": budget})
    if _is_usual(optimizer, distributed) and not any(getattr(model, name, None) for name in ("path", "size", "lora")):
        is_rate_given = "learning_rate" in optimizer.model_fields_set
        rate = optimizer.learning_rate if is_rate_given else LEARNING_RATE
        sections["optimizer"] = optimizer.model_copy(update={"algorithm": ALGORITHM, "learning_rate": rate})
    return sections


def with_holdout(data: DataSettings, values: Mapping[str, object]) -> DataSettings:
    """Return ``data`` with these ``values`` of the hold-out where no others were given; they still count as not given.

    Data of another kind than the Python standard library stay as they are.
    """
    if not isinstance(data, PythonLibraryDataSettings):
        return data
    chosen = data.model_copy(update={name: values[name] for name in HOLDOUT.keys() - data.model_fields_set})
    chosen.model_fields_set.difference_update(HOLDOUT.keys() - data.model_fields_set)
    return chosen


def _is_usual(optimizer: OptimizerSettings, distributed: DistributedSettings) -> bool:
    if not isinstance(optimizer, AccelerateOptimizerSettings) or "algorithm" in optimizer.model_fields_set:
        return False
    is_divided = optimizer.sharding == "fsdp2" or optimizer.offload or mesh_settings(distributed) != MeshSettings()
    return not is_divided
