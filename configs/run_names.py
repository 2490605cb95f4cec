"""Automatic names of runs, and the settings that identify a run."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from holdfast.configs.plain import leaves, to_plain
from holdfast.configs.ready_configurations import FORMER_HOLDOUT, with_holdout
from holdfast.configs.secret_masking import mask, mask_url
from holdfast.configs.sections.tokenizer import FORMER_VALUES
from holdfast.configs.settings import TrainSettings, usual_settings
from holdfast.domain.built_in import ATTENTION, LOSSES
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

QUICKSTART = "default"
# What a resumed run may not change: another value here makes it another run.
_IDENTITY = ("data", "tokenizer", "model", "run.seed", "optimizer.kind", "optimizer.algorithm")
_FREE: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("data.label", "data.lineage"), "they describe the data"),
        **dict.fromkeys(("data.prefetch", "data.prefetch_samples", "data.workers"), "they only read ahead"),
        **dict.fromkeys(("data.cache", "data.retry"), "tokens are the same wherever they are kept or read again"),
        **dict.fromkeys(("data.epochs", "data.on_error", "data.grow", "data.exclude"), "from then on"),
        **dict.fromkeys(
            ("data.drift", "data.strict", "data.validation.max_rejected"), "they only decide whether the run ends"
        ),
        "tokenizer.backend": "all backends give the same ids",
        **dict.fromkeys(("tokenizer.allow_other", "model.trust_remote_code", "model.trust_pickle"), "permissions"),
        "model.compile": "compiled layers train the same model, up to rounding",
        "model.gradient_checkpointing": "the same activations are computed again, up to rounding",
    }
)
"""What a resumed run may change within the settings above, and why."""
_FREE_AMONG: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"model.attention": ("auto", *ATTENTION), "model.loss": LOSSES}  # they compute the same, up to rounding
)
"""Values between which a resumed run may change; one of another package may compute something else."""
# a run that an earlier version began is named by these too
_ONCE_IN_NAMES = ("model.gradient_checkpointing", "model.trust_remote_code", "model.trust_pickle", *_FREE_AMONG)
# the place of files is not part of their identity, but runs are named by it
_FREE_OF_SOURCES = re.compile(r"data\.sources\..*\.(retry\..*|path)")
_PATH_OF_SOURCE = re.compile(r"data\.sources\..*\.path")
# a renamed setting counts under its former name, so that a run's folder keeps the name that it has
_FORMER = {"data.stream_buffer_bytes": "data.memory"}
_KINDS = ("data", "tokenizer", "model", "optimizer")
_GLOB = re.compile(r"[*?\[\]{}]")
_LONGEST_WORD = 40


def is_identity(key: str, *values: object) -> bool:
    """Return whether a change of the setting ``key`` between ``values`` makes another run."""
    if values and all(value in _FREE_AMONG.get(key, ()) for value in values):
        return False
    return is_below(key, _IDENTITY) and not (is_below(key, tuple(_FREE)) or _FREE_OF_SOURCES.fullmatch(key))


def source_of_path(key: str) -> str | None:
    """Return the name of a mixture's source if the setting ``key`` is its path; None for other settings."""
    return key.removeprefix("data.sources.").removesuffix(".path") if _PATH_OF_SOURCE.fullmatch(key) else None


def is_below(key: str, names: tuple[str, ...]) -> bool:
    """Return whether ``key`` is one of ``names`` or within one of them."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def names_itself(settings: TrainSettings) -> bool:
    """Return whether a run without a name gets an automatic one; it does not if it has a folder or an archive."""
    return settings.run.dir is None and getattr(settings.state_store, "archive", None) is None


def run_name(settings: TrainSettings, restore: Callable[[object], TrainSettings]) -> str:
    """Return the automatic name of a run, made of its data or model and a hash of the settings that identify it.

    A folder that an earlier version named by more settings keeps its name.
    The quickstart's name is ``default``. If an earlier version without automatic names has left the same run under
    ``default``, this name is kept; ``restore`` returns the settings from the record of that run.
    """
    name, former = _name_of(settings), _former_name(settings)
    if Path("runs", former).exists() and (former == name or former != QUICKSTART):
        return former
    record = Path("runs", QUICKSTART, "run.json")
    if name != QUICKSTART and not Path("runs", name).exists() and record.is_file():
        try:
            earlier = restore(json.loads(record.read_text(encoding="utf-8"))["settings"])
        except (OSError, ValueError, KeyError, TypeError, ConfigurationError, RecursionError):
            return name  # it is not this run's to complain of
        # the earlier run keeps what it began with
        if getattr(settings.tokenizer, "follows_model", False):
            settings = settings.model_copy(update={"tokenizer": earlier.tokenizer})
        kept = FORMER_VALUES.keys() - settings.tokenizer.model_fields_set
        former_values = {key: getattr(earlier.tokenizer, key) for key in kept if hasattr(earlier.tokenizer, key)}
        changes: dict[str, Any] = {"tokenizer": settings.tokenizer.model_copy(update=former_values)}
        if earlier.data.kind == settings.data.kind:
            changes["data"] = with_holdout(settings.data, dict(earlier.data))
        settings = settings.model_copy(update=changes)
        return QUICKSTART if _identity(earlier) == _identity(settings) else name
    return name


def _former_name(settings: TrainSettings) -> str:
    """Return the name that an earlier version gave the run, which was named by more settings, of other defaults."""
    usual = usual_settings(settings.data.kind)
    former, usual = (
        each.model_copy(update={"data": with_holdout(each.data, FORMER_HOLDOUT)}) for each in (settings, usual)
    )
    return _name_of(former, _ONCE_IN_NAMES, usual)


def _name_of(settings: TrainSettings, also: tuple[str, ...] = (), usual: TrainSettings | None = None) -> str:
    identity = _identity(settings, also, usual)
    if identity == _identity(TrainSettings()):
        return QUICKSTART
    named = {_FORMER.get(key, key): value for key, value in identity.items()}
    digest = blake2b(json.dumps(named, sort_keys=True).encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{_word(settings)}-{digest}"


def _identity(
    settings: TrainSettings, also: tuple[str, ...] = (), usual: TrainSettings | None = None
) -> dict[str, Any]:
    """Return the settings that identify a run, and those named ``also``, by dotted key.

    Defaults, those of ``usual`` if it is given, are left out, so settings can be added.
    """
    plain = mask(_chosen(settings, usual or usual_settings(settings.data.kind)), mask_url)
    by_path = {".".join(path): value for path, value in leaves(plain)}
    kinds = {f"{section}.kind": getattr(settings, section).kind for section in _KINDS}
    return {
        key: value
        for key, value in (by_path | kinds).items()
        if is_identity(key, value) or key in also or _PATH_OF_SOURCE.fullmatch(key)
    }


def _chosen(value: Any, reference: Any = None) -> Any:
    """Return plain data of the values that are not defaults, with paths relative to the current folder.

    Defaults are the values of ``reference``, and those of the type of ``value`` if ``reference`` is of another type.
    """
    if isinstance(value, BaseModel):
        own = {name: getattr(value, name) for name in type(value).model_fields}
        base = reference if type(reference) is type(value) else None
        others = {name: getattr(base, name, None) for name in own}
        defaults = _defaults(type(value)) if base is None else {name: to_plain(each) for name, each in others.items()}
        chosen = {name: item for name, item in own.items() if to_plain(item) != defaults[name]}
        return {
            name: _seen_from_here(item) if name == "path" else _chosen(item, others[name])
            for name, item in chosen.items()
        }
    if isinstance(value, dict):
        return {str(key): _chosen(item) for key, item in value.items()}
    return [_chosen(item) for item in value] if isinstance(value, list | tuple) else to_plain(value)


@cache
def _defaults(section: type[BaseModel]) -> Mapping[str, Any]:
    """Return the plain default of each field; the default of a required field equals no value."""
    try:
        whole: Any = section()
    except ValidationError:
        fields = section.model_fields.items()
        return {name: to_plain(field.get_default(call_default_factory=True)) for name, field in fields}
    return {name: to_plain(getattr(whole, name)) for name in section.model_fields}


def _seen_from_here(path: Any) -> Any:
    """Return a normalized local path: relative if it lies below the current folder, absolute otherwise."""
    if isinstance(path, list | tuple):
        return [_seen_from_here(item) for item in path]
    text = str(path)
    whole = Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111  a glob is no path, and ".." counts
    before_glob = Path(_GLOB.split(str(whole))[0])
    if "://" in text or not (before_glob.exists() or (before_glob.parent.exists() and _GLOB.search(text))):
        return text  # a place on the network, or a name on the hub
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)


def _word(settings: TrainSettings) -> str:
    """Return a word for the data of a run, or for its model if the data are the default."""
    data: Any = settings.data
    model: Any = settings.model
    if data.kind != "python_library":
        path = _seen_from_here(getattr(data, "path", None) or "")
        word = _last_part(path[0] if isinstance(path, list) else path) or data.kind
    else:
        config: Mapping[str, Any] = getattr(model, "config", None) or {}
        path = _seen_from_here(getattr(model, "path", None) or "")
        word = _last_part(path) or str(config.get("model_type") or model.kind)
    return re.sub(r"[^A-Za-z0-9_]+", "-", word).strip("-_")[:_LONGEST_WORD] or "run"


def _last_part(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".", "..") and not _GLOB.search(part)]
    return parts[-1].split(".")[0] if parts else ""
