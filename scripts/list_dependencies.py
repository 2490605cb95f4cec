"""Lists the packages that a run needs, with their licenses: as an SBOM (CycloneDX), or in docs/dependencies.md.

Both describe the packages that are installed in the running environment. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import tomllib
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
OF_DEVELOPMENT = {"bench", "dev", "docs", "test"}
"""The extras that no run needs."""
_SPDX = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "bsd 2-clause license": "BSD-2-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.0-or-later",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "the mit license (mit)": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""The SPDX identifier of names that packages use; ``BSD License`` stands for several, so it is not here."""
_COPYLEFT = re.compile(r"\b(?:A?GPL|LGPL|MPL|EPL|CDDL)", re.IGNORECASE)
_HEADING = "## Licenses\n"
_INTRODUCTION = """\
## Licenses

Holdfast has the license Apache-2.0. The packages that it needs have licenses of their own, listed here as their
metadata state them, in the versions that were installed on {date} on {system} with Python {python}.
`make licenses` writes this section. `make sbom` writes the packages of your environment to `build/sbom.json`, in the
format CycloneDX 1.6, with their versions, their licenses and the packages that each of them needs.
`make sbom ARGS='--extra s3'` includes an extra.

The wheel of Holdfast contains no code of these packages. It contains uPlot 1.6.32 (MIT), which draws the curves of
pages and reports, with its license in the first lines of `bootstrap/web/static/uplot.js`. A build of `torch` for CUDA
requires libraries of NVIDIA (`nvidia-*`) under NVIDIA's own license, which is not an open-source license. They are not
listed here, because the environment had the build for CPUs. Packages that only tests, benchmarks or documentation need
are not listed either.
"""


@dataclass(frozen=True)
class Packages:
    """The installed distributions by name, and the names that each needs; the key "" has those needed directly."""

    distributions: dict[str, Distribution] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what the arguments ask for; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=["sbom", "licenses"], help="an SBOM as JSON, or the section of licenses")
    parser.add_argument("--extra", action="append", default=[], help="an extra whose packages the SBOM includes")
    parser.add_argument(
        "--output",
        type=Path,
        help="the file of the SBOM, or the page that ends with the section; default: standard output",
    )
    options = parser.parse_args(arguments)
    project = read_project()
    if strange := set(options.extra) - project["optional-dependencies"].keys():
        parser.error(f"{', '.join(sorted(strange))}: pyproject.toml has no such extra")
    try:
        text = licenses_section(project) if options.kind == "licenses" else sbom_text(project, options.extra)
    except LookupError as error:
        print(f"error: {error.args[0]}", file=sys.stderr)  # noqa: T201
        return 2
    if options.output is None:
        sys.stdout.write(text)
    else:
        if options.kind == "licenses":
            text = options.output.read_text(encoding="utf-8").partition(_HEADING)[0] + text
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")
    return 0


def read_project() -> dict[str, Any]:
    """Return the section ``project`` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def needed_by(project: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, for each package that a run may need directly, the extras that need it; none if it is required."""
    found: dict[str, list[str]] = {_name(line): [] for line in project["dependencies"]}
    for extra, lines in project["optional-dependencies"].items():
        for line in lines if extra not in OF_DEVELOPMENT else ():
            if _name(line) not in map(_name, project["dependencies"]):
                found.setdefault(_name(line), []).append(extra)
    return found


def collect(lines: Iterable[str]) -> Packages:
    """Return the installed packages that the requirements ``lines`` need, directly and indirectly.

    Raises ``LookupError`` if one is not installed.
    """
    packages, seen = Packages(), set()
    waiting = [("", Requirement(line)) for line in lines]
    while waiting:
        parent, requirement = waiting.pop()
        if not _applies(requirement, {""}):
            continue
        name = canonicalize_name(requirement.name)
        packages.needs.setdefault(parent, set()).add(name)
        if (name, *sorted(requirement.extras)) in seen:
            continue
        seen.add((name, *sorted(requirement.extras)))
        found = packages.distributions[name] = _installed(name, parent)
        children = map(Requirement, found.requires or ())
        waiting += [(name, _bare(each)) for each in children if _applies(each, {"", *requirement.extras})]
    return packages


def license_of(found: Distribution) -> tuple[str, bool]:
    """Return the license of ``found``, and whether it is an expression of SPDX rather than a name."""
    metadata = found.metadata
    name = (metadata.get("License") or "").strip().partition("\n")[0].strip()
    classified = [
        each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or () if "OSI Approved ::" in each
    ]
    stated = [metadata.get("License-Expression") or "", name, *(classified if len(classified) == 1 else ())]
    for each in stated:
        try:
            return canonicalize_license_expression(_SPDX.get(each.lower(), each)), True
        except InvalidLicenseExpression:
            continue
    if classified:
        return "; ".join(classified), False
    if name and not name.lower().startswith("copyright"):
        return name, False
    files = metadata.get_all("License-File") or ["LICENSE"]
    return f"stated only in its file {files[0]}", False


def sbom_text(project: Mapping[str, Any], extras: Sequence[str]) -> str:
    """Return the SBOM of the required packages and those of ``extras``, in the format CycloneDX 1.6."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "holdfast/version.py").read_text(encoding="utf-8"))
    assert version is not None, "holdfast/version.py states the version"
    lines = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    packages = collect(lines)
    references = {name: _purl(name, each.version) for name, each in packages.distributions.items()}
    references[""] = _purl(project["name"], version[1])
    own = _component(project["name"], version[1], {"expression": project["license"]})
    graph = [
        {"ref": references[name], "dependsOn": sorted(references[each] for each in packages.needs.get(name, ()))}
        for name in sorted(references)
    ]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": datetime.now(UTC).isoformat(timespec="seconds"), "component": own},
        "components": [
            _component(name, each.version, _license_entry(each))
            for name, each in sorted(packages.distributions.items())
        ],
        "dependencies": graph,
    }
    return json.dumps(bom, indent=2) + "\n"


def licenses_section(project: Mapping[str, Any]) -> str:
    """Return the section of the licenses of all packages that a run may need."""
    direct = needed_by(project)
    optional = [
        line for extra, each in project["optional-dependencies"].items() if extra not in OF_DEVELOPMENT for line in each
    ]
    packages = collect([*project["dependencies"], *optional]).distributions
    required = collect(project["dependencies"]).distributions
    indirect = sorted(packages.keys() - {canonicalize_name(name) for name in direct})
    date, python = datetime.now(UTC).date(), platform.python_version()
    parts = [_INTRODUCTION.format(date=date, system=f"{platform.system()} ({platform.machine()})", python=python)]
    parts += _table("Required packages", [(name, "") for name, extras in direct.items() if not extras], packages, "")
    parts += _table(
        "Optional packages", [(name, ", ".join(each)) for name, each in direct.items() if each], packages, "extra"
    )
    notes = [(name, "" if name in required else "only with an extra") for name in indirect]
    parts += _table("Packages needed by those", notes, packages, "note")
    weak = [name for name in sorted(packages) if _COPYLEFT.search(license_of(packages[name])[0])]
    parts += [
        "### Copyleft",
        "",
        "These packages are under a license with copyleft, alone or with other licenses:",
    ]
    parts += ["", ", ".join(f"`{name}`" for name in weak) + "."]
    return "\n".join(parts) + "\n"


def _table(title: str, rows: Iterable[tuple[str, str]], packages: Mapping[str, Distribution], last: str) -> list[str]:
    lines = [f"### {title}", "", "| package | version | license |" + f" {last} |" * bool(last)]
    lines.append("|---|---|---|" + "---|" * bool(last))
    for name, note in rows:
        found = packages.get(canonicalize_name(name))
        version, license_ = (
            ("", "not installed on this system") if found is None else (found.version, license_of(found)[0])
        )
        lines.append(f"| `{name}` | {version} | {license_} |" + f" {note} |" * bool(last))
    return [*lines, ""]


def _component(name: str, version: str, license_: Mapping[str, Any]) -> dict[str, Any]:
    reference = _purl(name, version)
    kind = {"type": "library", "bom-ref": reference}
    return {**kind, "name": name, "version": version, "licenses": [license_], "purl": reference}


def _license_entry(found: Distribution) -> dict[str, Any]:
    text, is_expression = license_of(found)
    return {"expression": text} if is_expression else {"license": {"name": text}}


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{canonicalize_name(name)}@{quote(version, safe='')}"


def _installed(name: str, parent: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        msg = f"{name}, which {parent or 'pyproject.toml'} requires, is not installed: run pip install {name}"
        raise LookupError(msg) from error


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def _bare(requirement: Requirement) -> Requirement:
    """Return ``requirement`` without its marker, which applies."""
    requirement.marker = None
    return requirement


def _name(line: str) -> str:
    return Requirement(line).name


if __name__ == "__main__":
    raise SystemExit(main())
