"""The SBOM and the licenses that ``scripts/list_dependencies.py`` writes."""

from __future__ import annotations

import json
import subprocess
import sys
from email.message import Message
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from holdfast.version import __version__
from tests.support.command_line import ROOT

SCRIPT = ROOT / "scripts/list_dependencies.py"


def load_script():
    """Return the script as a module."""
    spec = spec_from_file_location("list_dependencies", SCRIPT)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(*arguments):
    """Run the script with ``arguments``."""
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


class Named:
    """A distribution with metadata alone."""

    def __init__(self, **headers):
        self.metadata = Message()
        for name, values in headers.items():
            for value in values if isinstance(values, list) else [values]:
                self.metadata[name.replace("_", "-")] = value


@pytest.fixture(scope="module")
def bom(tmp_path_factory):
    """Return the SBOM of the required packages as a dictionary."""
    path = tmp_path_factory.mktemp("bom") / "new/sbom.json"
    process = run_script("sbom", "--output", str(path))
    assert process.returncode == 0, process.stderr
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_sbom_is_valid(bom):
    """The SBOM fulfills the published schema of CycloneDX 1.6."""
    pytest.importorskip("cyclonedx", reason='needs pip install "cyclonedx-python-lib[json-validation]"')
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom)) is None
    broken = bom | {"components": [{"name": "a component without a type"}]}
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(broken)) is not None


def test_the_sbom_names_all_packages_and_their_needs(bom):
    """Each direct and indirect package is a component with a license, and each reference leads to a component."""
    components = {each["name"]: each for each in bom["components"]}
    direct = {name for name, extras in load_script().needed_by(load_script().read_project()).items() if not extras}
    assert {"torch", "huggingface-hub"} <= components.keys()
    assert "pytest" not in components
    assert {each for each in direct if each not in components} <= {"backports-zstd", "nvidia-ml-py"}
    assert all(len(each["licenses"]) == 1 for each in components.values())
    own = bom["metadata"]["component"]
    assert (own["name"], own["version"]) == ("holdfast-lm", __version__)
    needs = {each["ref"]: each["dependsOn"] for each in bom["dependencies"]}
    known = {own["bom-ref"], *(each["bom-ref"] for each in components.values())}
    assert needs.keys() == known
    assert {each for refs in needs.values() for each in refs} == known - {own["bom-ref"]}
    assert components["numpy"]["bom-ref"] in needs[components["transformers"]["bom-ref"]]


def test_an_extra_adds_its_packages(bom):
    """An extra that is asked for adds its packages, with the extras that they name themselves."""
    process = run_script("sbom", "--extra", "http")
    assert process.returncode == 0, process.stderr
    more = {each["name"] for each in json.loads(process.stdout)["components"]}
    assert more - {each["name"] for each in bom["components"]} >= {"aiohttp"}
    refused = run_script("sbom", "--extra", "nothing")
    assert refused.returncode == 2
    assert "nothing: pyproject.toml has no such extra" in refused.stderr


def test_the_licenses_replace_the_last_section_of_a_page(tmp_path, monkeypatch):
    """What stands before the section stays, and the section lists each package with its license."""
    script, page = load_script(), tmp_path / "page.md"
    monkeypatch.setattr(script, "read_project", lambda: {"dependencies": ["numpy"], "optional-dependencies": {}})
    page.write_text("# Dependencies\n\nBefore.\n\n## Licenses\n\n| `former` | 1 | MIT |\n")
    assert script.main(["licenses", "--output", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("# Dependencies\n\nBefore.\n\n## Licenses\n\nHoldfast has the license")
    assert "| `numpy` | " in text
    assert "former" not in text


def test_a_package_that_is_not_installed_is_named():
    """A package that is required but not installed ends the program with its name and the remedy."""
    with pytest.raises(LookupError, match=r"no-such-package, which pyproject\.toml requires, .*: run pip install"):
        load_script().collect(["no-such-package>=1"])


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (Named(License_Expression="mit or apache-2.0"), ("MIT OR Apache-2.0", True)),
        (Named(License="Apache 2.0"), ("Apache-2.0", True)),
        (Named(License="MIT License\n\nCopyright (c) 2022"), ("MIT", True)),
        (Named(License="BSD", Classifier="License :: OSI Approved :: BSD License"), ("BSD License", False)),
        (Named(License="", Classifier="License :: OSI Approved :: MIT License"), ("MIT", True)),
        (
            Named(
                License="Dual License",
                Classifier=[
                    f"License :: OSI Approved :: {each}" for each in ("BSD License", "Apache Software License")
                ],
            ),
            ("BSD License; Apache Software License", False),
        ),
        (Named(License="Copyright 2018 Somebody", License_File="NOTICE"), ("stated only in its file NOTICE", False)),
        (Named(License="Own terms"), ("Own terms", False)),
    ],
)
def test_a_license_is_read_from_the_metadata(distribution, expected):
    """Names become identifiers of SPDX only if they stand for one license."""
    assert load_script().license_of(distribution) == expected
