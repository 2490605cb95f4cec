"""Each trouble that is planted on a machine is found, and the remedy names the thing to do."""

import re

import pytest

from holdfast.bootstrap.doctor.finding import CheckVerdict, as_data, as_lines
from holdfast.bootstrap.doctor.needed_extras import requirements
from tests.support import machine_troubles, network_troubles, storage_troubles
from tests.support.command_line import ROOT
from tests.support.planted_troubles import TROUBLES

FOLDERS = {"run folder", "token cache"}
OF_A_FOLDER = {"space", "speed", "fsync", "locks", "rename"}


def documented():
    """Return the checks that the table of docs/doctor.md names."""
    table = (ROOT / "docs/doctor.md").read_text(encoding="utf-8").split("\n## Checks\n")[1]
    names = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    assert {*FOLDERS, *OF_A_FOLDER} <= names
    of_folders = {f"{folder} {check}" for folder in FOLDERS for check in OF_A_FOLDER}
    packages = {requirement.name for requirement in requirements()}  # "and the name of a package"
    return names | of_folders | packages


@pytest.mark.parametrize("name", TROUBLES)
def test_a_planted_trouble_is_found_with_its_remedy(name, tmp_path, monkeypatch):
    """The finding has the verdict that the trouble deserves, one line, and a remedy that names what to do."""
    planted = TROUBLES[name]
    finding = planted.plant(tmp_path, monkeypatch)
    assert finding.verdict is planted.verdict, finding
    assert planted.remedy in finding.remedy, finding
    assert finding.detail
    assert re.sub(r"^extra \w+$", "extra NAME", finding.name) in documented()
    _, line, count = as_lines([finding])
    assert planted.remedy in line
    assert line.startswith(planted.verdict)
    assert ("would not work" in count) is (planted.verdict is CheckVerdict.ERROR)
    assert "hunter2" not in f"{line}{as_data([finding])}"


@pytest.mark.parametrize("subject", [machine_troubles, network_troubles, storage_troubles])
def test_troubles_are_planted_in_each_subject(subject):
    """At least eight troubles belong to machine, network and storage each, so that none is left out of the tests."""
    assert sum(planted.plant.__module__ == subject.__name__ for planted in TROUBLES.values()) >= 8
