"""The page on adapters of one's own: its package is installed, tested by the contract suites and used."""

from __future__ import annotations

import csv
import re
import subprocess
import sys

import pytest

from tests.support.followed_pages import commands_of, files_of, follow, write_files

PAGE = "docs/write-an-adapter.md"


@pytest.fixture
def package(tmp_path):
    """Return a folder with the files of the page, and the folder into which its package is installed."""
    folder, site = tmp_path / "adapters", tmp_path / "site"
    write_files(PAGE, folder)
    command = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--no-build-isolation", "--no-index"]
    process = subprocess.run(
        [*command, "--target", site, folder], capture_output=True, text=True, check=False, timeout=100
    )
    assert process.returncode == 0, process.stderr
    return folder, site


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_package_of_the_page_passes_the_suites_and_trains(package, monkeypatch):
    """The installed adapters pass their contracts, a run reads its texts by one, and the other has each step once."""
    folder, site = package
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    install, test, *others = commands_of(PAGE)
    assert (install, test) == ("pip install -e .", "pytest")
    for name in ("csv_monitor.py", "zip_source.py"):  # so that those of the installed package are used
        (folder / name).unlink()
    found = follow(f"{test} -p no:cacheprovider -W error -n 0 -p no:randomly --rootdir .", folder)
    assert int(re.search(r"(\d+) passed", found)[1]) >= 30
    assert "failed" not in found
    assert len(others) == 3
    for command in others:
        output = follow(command, folder)
        if " doctor " in command:
            assert "error" not in output
    assert "end: " in " ".join(output.split())
    assert "finished 20 steps" in output
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        steps = [int(step) for step, name, _ in csv.reader(file) if name == "loss"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 20


def test_the_page_has_a_suite_for_each_adapter():
    """Each adapter of the page has a test file of the page that derives from the suite of its port."""
    files = files_of(PAGE)
    assert "MonitorContract" in files["test_csv_monitor.py"]
    assert "DataSourceContract" in files["test_zip_source.py"]
    named = re.findall(r'= "(\w+):(\w+)"', files["pyproject.toml"])
    assert len(named) == 2
    assert all(f"class {name}(" in files[f"{module}.py"] for module, name in named)
