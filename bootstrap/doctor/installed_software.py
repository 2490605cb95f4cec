"""Checks of the installed software: Python, the packages of this version, and the extras for the settings."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from holdfast.bootstrap.doctor.finding import Finding, bad, doubtful, good
from holdfast.bootstrap.doctor.named_places import database_places
from holdfast.domain.counting import counted
from holdfast.domain.home_folder import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from holdfast.configs.settings import TrainSettings

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
