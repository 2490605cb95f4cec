"""The page on adapters of one's own: its package is installed, tested by the contract suites and used."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tests.support.followed_pages import commands_of, files_of, follow, of_reader, write_files

PAGE = "docs/write-an-adapter.md"
EXAMPLES = ("embedded_service", "fastapi_service", "sqlite_data_source")
A_RUN = "from holdfast import TrainSettings, build\n\nrun = build(TrainSettings())\n"
MYPY = [sys.executable, "-m", "mypy"]


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
    for name in _modules(files_of(PAGE)):  # so that those of the installed package are used
        (folder / name).unlink()
    found = follow(f"{test} -p no:cacheprovider -W error -n 0 -p no:randomly --rootdir .", folder)
    assert int(re.search(r"(\d+) passed", found)[1]) >= 80
    assert "failed" not in found
    assert len(others) == 5
    for command in others:
        output = follow(command, folder)
        if " doctor " in command:
            assert "error" not in output
        if "run.name=books" in command:
            assert "finished 20 steps" in output
    assert "trained 4 steps" in output
    assert sorted(path.name for path in (folder / "zipped").glob("*.zip")) == ["checkpoint-2.zip", "checkpoint-4.zip"]
    for name in ("saves.txt", "zipped.txt"):
        assert [line.split()[0] for line in (folder / name).read_text().splitlines()] == ["2", "4"]
    assert (folder / "runs/logged/audit.jsonl").stat().st_size
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        steps = [int(step) for step, name, _ in csv.reader(file) if name == "loss"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 20


def test_the_page_has_a_suite_for_each_adapter():
    """Each module of the page has a test file, that of an adapter derives from the suite of its port."""
    files = files_of(PAGE)
    suites = {
        "csv_monitor": "Monitor",
        "zip_source": "DataSource",
        "zip_store": "StateStore",
        "logged_store": "StateStore",
    }
    assert all(f"({port}Contract)" in files[f"test_{module}.py"] for module, port in suites.items())
    named = re.findall(r'= "(\w+):(\w+)"', files["pyproject.toml"])
    assert len(named) == 5
    assert all(re.search(rf"^(class|def) {name}\(", files[f"{module}.py"], re.MULTILINE) for module, name in named)
    assert {f"test_{name}" for name in _modules(files)} <= files.keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_code_for_hosts_is_typed(checker, tmp_path):
    """Mypy and pyright find no error in their strict modes: adapters, their tests, and programs that embed runs."""
    # pyright is no part of an extra: the package pyright[nodejs] has it
    if shutil.which(checker, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") is None:
        pytest.skip(f"{checker} is not installed")
    names = [name for name in write_files(PAGE, tmp_path) if name.endswith(".py")]
    programs = ["tests/support/sample_host.py", *(f"examples/{name}.py" for name in EXAMPLES)]
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/embedding.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) >= 5
    texts = {Path(name).name: (ROOT / name).read_text("utf-8") for name in programs}
    texts |= {
        f"embedding_{number}.py": block if "build" in block else A_RUN + block for number, block in enumerate(blocks)
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path}/cache"]
    command = ["pyright", "--pythonpath", sys.executable] if checker == "pyright" else [*MYPY, *options]
    process = subprocess.run(
        [*command, *names, *texts], cwd=tmp_path, env=of_reader(tmp_path), capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("argument", "is_right"),
    [
        ("state_store=MemoryStateStore(Retention(3))", True),
        ("state_store=lambda inner: ForwardingStateStore(inner)", True),
        ("state_store=MemoryStateStore", False),
        ("state_stor=MemoryStateStore(Retention(3))", False),
        ("data_source=MemoryStateStore(Retention(3))", False),
    ],
)
def test_a_type_checker_knows_the_arguments_of_build(tmp_path, argument, is_right):
    """A misspelt name, a class in place of an object, and an adapter of another port are errors of types."""
    pytest.importorskip("mypy")
    (tmp_path / "host.py").write_text(
        "from holdfast import TrainSettings, build\n"
        "from holdfast.adapters.state_store.memory import MemoryStateStore\n"
        "from holdfast.domain.checkpoints.retention import Retention\n"
        "from holdfast.ports.forwarding.state_store import ForwardingStateStore\n"
        f"build(TrainSettings(), {argument})\n"
    )
    cache = tmp_path.parent / "types"
    command = [*MYPY, "--strict", "--config-file=", f"--cache-dir={cache}", "host.py"]
    process = subprocess.run(
        command, cwd=tmp_path, env=of_reader(tmp_path), capture_output=True, text=True, check=False
    )
    assert (process.returncode == 0) is is_right, process.stdout


def _modules(files):
    """Return the names of the files with the modules of the package."""
    listed = re.search(r"py-modules = \[(.*)\]", files["pyproject.toml"])[1]
    return [f"{name}.py" for name in re.findall(r'"(\w+)"', listed)]
