"""The extras of this package that settings need, and the setting that needs each."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from holdfast.bootstrap.doctor.finding import Finding, bad, doubtful, good
from holdfast.bootstrap.doctor.named_places import data_places, database_places
from holdfast.bootstrap.stages.identify.record_pipeline import TRANSFORMS
from holdfast.configs.sections.base import PluginSettings
from holdfast.configs.sections.data import PluginDataSettings
from holdfast.configs.sections.optimizer import PluginOptimizerSettings, TorchOptimizerSettings
from holdfast.configs.sections.state_store import PluginStateStoreSettings
from holdfast.domain.built_in import ATTENTION, LOSSES
from holdfast.domain.sizes import counted
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from holdfast.configs.settings import TrainSettings

EXTRA_OF_SCHEME = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
"""The extra for URLs, by the scheme of the URL."""
_TABLES = {".parquet", ".arrow"}
_MONITORS = frozenset({"tensorboard", "mlflow", "wandb", "trackio", "prometheus", "postgres", "page"})
_ALGORITHMS = {"lion": "lion", "adamw_8bit": "bnb"}
_BACKENDS = frozenset({"tiktoken", "gigatoken"})


def needed_extras(settings: TrainSettings) -> dict[str, str]:
    """Return the extras that a run with ``settings`` needs, each with the first setting that needs it."""
    extras: dict[str, str] = {}
    for extra, setting in (*_of_data(settings), *_of_model(settings), *_of_state(settings), *_of_run(settings)):
        extras.setdefault(extra, setting)
    return extras


def _of_data(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    data = settings.data
    for place in data_places(settings):
        if place.is_dataset:
            yield "datasets", f"{place.setting}={place.url}"
            continue
        scheme = place.url.partition("://")[0] if "://" in place.url else ""
        if scheme in EXTRA_OF_SCHEME:
            yield EXTRA_OF_SCHEME[scheme], f"{place.setting}={place.url}"
        if PurePosixPath(place.url).suffix in _TABLES or place.format in ("parquet", "arrow"):
            yield "parquet", f"{place.setting}={place.url}"
    if data.dedup is not None and data.dedup.kind == "minhash":
        yield "dedup", "data.dedup.kind=minhash"
    if data.lineage is not None:
        yield "lineage", "data.lineage"
    if any(transform.kind == "language" for transform in data.transforms):
        yield "language", "data.transforms, with language,"
    if data.cache.encryption is not None:
        yield "encryption", "data.cache.encryption"


def _of_model(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    backend = None if isinstance(settings.tokenizer, PluginSettings) else settings.tokenizer.backend
    if backend in _BACKENDS:
        yield "fast", f"tokenizer.backend={backend}"
    lora = settings.model.lora
    if lora is not None:
        yield "lora", "model.lora"
        if lora.quantize == "4bit":
            yield "bnb", "model.lora.quantize=4bit"
    optimizer = settings.optimizer
    if optimizer.kind == "deepspeed":
        yield "deepspeed", "optimizer.kind=deepspeed"
    if optimizer.precision == "fp8":
        yield "fp8", "optimizer.precision=fp8"
    if isinstance(optimizer, TorchOptimizerSettings) and optimizer.algorithm in _ALGORITHMS:
        yield _ALGORITHMS[optimizer.algorithm], f"optimizer.algorithm={optimizer.algorithm}"


def _of_state(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    store = settings.state_store
    if store.encryption is not None:
        yield "encryption", "state_store.encryption"
    if store.archive is not None and (extra := EXTRA_OF_SCHEME.get(store.archive.url.partition("://")[0])):
        yield extra, f"state_store.archive.url={store.archive.url}"
    if settings.ledger.kind == "postgres":
        yield "postgres", "ledger.kind=postgres"


def _of_run(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    for monitor in settings.monitors:
        if monitor.kind in _MONITORS:
            yield monitor.kind, f"the monitor {monitor.kind}"
    if settings.evaluation.suites:
        yield "eval", "evaluation.suites"
    if settings.distributed.kind == "ray":
        yield "ray", "distributed.kind=ray"


_PLUGINS = (PluginSettings, PluginDataSettings, PluginOptimizerSettings, PluginStateStoreSettings)
_GROUPS = {
    "data": "data_source",
    "tokenizer": "tokenizer",
    "model": "model_factory",
    "optimizer": "optimizer",
    "state_store": "state_store",
    "ledger": "ledger",
    "event_bus": "event_bus",
    "distributed": "process_group",
}
"""The group of entry points for each section with a kind."""


def installed_names(group: str) -> Collection[str]:
    """Return the names of the installed entry points of ``group``."""
    return {point.name for point in entry_points(group=f"holdfast.{group}")}


def check_plugins(
    settings: TrainSettings, installed: Callable[[str], Collection[str]] = installed_names
) -> Iterator[Finding]:
    """Yield a finding for each adapter of another package that ``settings`` name; none is imported."""
    for setting, group, name in dict.fromkeys(_named(settings)):
        if name in installed(group):
            yield good(setting, f"{name} is installed")
        else:
            remedy = f"install the package that offers it in the environment of this Python, or correct {setting}"
            yield bad(setting, f"no installed package has the entry point {name} of holdfast.{group}", remedy)
    if settings.model.loss == "liger" and find_spec("liger_kernel") is None:
        yield bad("model.loss", "liger needs the package liger-kernel", "run pip install liger-kernel")


def _named(settings: TrainSettings) -> Iterator[tuple[str, str, str]]:
    sections = {name: section for name, section in settings if name in _GROUPS}
    for name, section in sections.items():
        if isinstance(section, _PLUGINS):
            yield f"{name}.kind", _GROUPS[name], section.kind
    for monitor in settings.monitors:
        if isinstance(monitor, PluginSettings):
            yield "monitors", "monitor", monitor.kind
    yield from (("handlers", "handler", handler.kind) for handler in settings.handlers)
    yield from (("wrappers", "wrapper", wrapper.kind) for wrapper in settings.wrappers)
    transforms = (transform.kind for transform in settings.data.transforms)
    yield from (("data.transforms", "transform", kind) for kind in transforms if kind not in TRANSFORMS)
    if settings.model.attention not in ("auto", *ATTENTION):
        yield "model.attention", "attention", settings.model.attention
    if settings.model.loss not in LOSSES:
        yield "model.loss", "loss", settings.model.loss


PACKAGE = "holdfast-lm"
_FORMER = "holdfast"
"""The former name of the distribution."""
_MAY_LACK = {"obstore"}  # s3fs reads in its place, more slowly


def installed_version(package: str) -> str | None:
    """Return the installed version of ``package``, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def allowed_python() -> str:
    """Return the versions of Python that this package allows, such as ``>=3.11``."""
    return distribution(PACKAGE).metadata["Requires-Python"] or ""


def requirements() -> list[Requirement]:
    """Return all requirements of this package, those of its extras included."""
    return [Requirement(line) for line in distribution(PACKAGE).requires or ()]


def warn_of_checkout() -> Finding:
    """Return the finding on a checkout that is not installed, whose requirements are not known to Python."""
    detail = f"{PACKAGE} is not installed, so no version was compared with what it requires"
    return doubtful("packages", detail, "run pip install -e . in the checkout")


def check_python(allowed: str, found: str = platform.python_version()) -> Finding:
    """Return whether the version ``found`` of Python is in ``allowed``."""
    if SpecifierSet(allowed).contains(found, prereleases=True):
        return good("python", f"{found}, and {allowed} is allowed")
    return bad("python", f"{found}, but only {allowed} is allowed", f"install Python {allowed}, and {PACKAGE} into it")


def check_packages(
    wanted: Iterable[Requirement], installed: Callable[[str], str | None] = installed_version
) -> Iterator[Finding]:
    """Yield a finding for torch, and one for all other requirements without an extra that are not met.

    The former distribution beside this one is a warning.
    """
    count = 0
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        problem = _problem(requirement, installed(requirement.name))
        if problem is not None:
            yield bad(requirement.name, problem, f'run pip install "{requirement.name}{requirement.specifier}"')
        elif requirement.name == "torch":
            yield good("torch", f"{installed('torch')}, and {requirement.specifier} is allowed")
    if (former := installed(_FORMER)) is not None:
        detail = f"the former distribution {_FORMER} {former} is installed too, and both have the package holdfast"
        yield doubtful("packages", detail, f"run pip uninstall {_FORMER} {PACKAGE}, then install {PACKAGE} again")
        return
    yield good("packages", f"{counted(count, 'package')} of {PACKAGE} {installed(PACKAGE)} looked for")


def check_extras(
    needed: Mapping[str, str], wanted: Iterable[Requirement], installed: Callable[[str], str | None] = installed_version
) -> Iterator[Finding]:
    """Yield a finding for each extra in ``needed``, which has the setting that needs it."""
    of_all = [each for each in wanted if each.marker is not None]
    for extra, setting in needed.items():
        of_extra = [each for each in of_all if each.marker is not None and _is_of(each, extra)]
        problems = [problem for each in of_extra if (problem := _problem(each, installed(each.name))) is not None]
        name = f"extra {extra}"
        if problems:
            install = f'run pip install "{PACKAGE}[{extra}]"'
            yield bad(name, f"{setting} needs it, but {' and '.join(problems)}", install)
        else:
            yield good(name, f"installed, for {setting}")


def check_secrets(settings: TrainSettings, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yield a finding for each variable or file in which the settings say that a key, token or DSN stands."""
    for setting, place in _places_of_secrets(settings):
        kind, _, name = place.partition(":")
        if kind == "env":
            if environment.get(name):
                yield good(setting, f"the environment variable {name} is set")
            else:
                yield bad(setting, f"the environment variable {name} is not set", f"set {name} before the run")
        elif kind == "file":
            path = expanded(name)
            if path.is_file() and os.access(path, os.R_OK):
                yield good(setting, f"{path} can be read")
            else:
                yield bad(setting, f"{path} is no file that can be read", f"create {path}, or correct {setting}")


def _places_of_secrets(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    for setting, section in (
        ("state_store.encryption", settings.state_store.encryption),
        ("data.cache.encryption", settings.data.cache.encryption),
    ):
        if section is not None:
            yield f"{setting}.key_from", section.key_from
    if settings.data.lineage is not None and settings.data.lineage.token_from is not None:
        yield "data.lineage.token_from", settings.data.lineage.token_from
    for monitor in settings.monitors:
        if place := dict(monitor).get("token_from"):
            yield f"monitors.{monitor.kind}.token_from", place
    for database in database_places(settings):
        if database.dsn.startswith("env:"):
            yield database.setting, database.dsn


def _is_of(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _problem(requirement: Requirement, found: str | None) -> str | None:
    if found is None:
        return None if requirement.name in _MAY_LACK else f"{requirement.name} is not installed"
    if requirement.specifier.contains(found, prereleases=True):
        return None
    return f"{requirement.name} is {found}, and only {requirement.specifier} is allowed"
