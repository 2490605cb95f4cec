"""A user's own folders and packages may be called as those of this repository are."""

from __future__ import annotations

import shutil

import pytest

from tests.support.command_line import corpus, tiny
from tests.support.installations import ROOT, install

NAMES = ("adapters", "application", "configs", "domain", "ports", "tests")
SERVICE = """
import sys
from holdfast import TrainSettings, build
from holdfast.configs.settings_layers import load_settings
settings = load_settings([], sys.argv[1:], {}).settings
assert isinstance(settings, TrainSettings)
print("finished", build(settings).run().step, "steps")
"""
WAYS = {
    "module": ["python", "-m", "holdfast", "train"],
    "command": ["holdfast", "train"],
    "supervised": ["holdfast", "train", "--supervise"],
    "verify-resume": ["python", "-m", "holdfast", "verify-resume"],
    "ranks": ["python", "-m", "holdfast", "train", "distributed.processes=2"],
    "embedded": ["python", "service.py"],
}


@pytest.fixture(scope="module", params=["editable", "wheel"])
def installation(request, tmp_path_factory):
    """Return an environment with nothing but the dependencies and an installation of each form."""
    return install(tmp_path_factory.mktemp(request.param), editable=request.param == "editable")


@pytest.fixture
def home(installation, tmp_path):
    """Return a folder with packages of these names that must not be imported, or with empty folders.

    Each way of starting meets both, one with an editable installation and the other with a wheel.
    """
    for name in NAMES:
        (tmp_path / name).mkdir()
        if installation.folder.parent.name.startswith("editable"):
            (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the user meant another package')\n")
    (tmp_path / "service.py").write_text(SERVICE)
    return tmp_path


def arguments(command, installation, folder):
    """Return ``command`` with the program of the installation, and settings of a run of a few steps."""
    program = {"python": installation.python, "holdfast": installation.command}[command[0]]
    few = ["run.budget.steps=6", "evaluation.every=0", "sample.max_new_tokens=1", "run.name=mine"]
    return [program, *command[1:], *tiny(corpus(folder), *few)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_folders_of_the_same_names_do_not_matter(way, installation, home):
    """However it is installed and started, the program runs beside empty folders and packages of its parts' names."""
    process = installation.run(*arguments(WAYS[way], installation, home), cwd=home)
    assert process.returncode == 0, process.stdout + process.stderr
    assert ("bit for bit" if way == "verify-resume" else "finished 6 steps") in process.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_keeps_its_own_packages(installation, tmp_path):
    """A program whose packages have these names imports its own, whichever of the two was installed last."""
    packages = next(installation.folder.glob("lib/python*/site-packages"))
    owned = {name: packages / name / "__init__.py" for name in NAMES}
    assert not [name for name in NAMES if owned[name].parent.exists()]
    for name, path in owned.items():
        path.parent.mkdir()
        path.write_text(f"OWNER = 'the host, {name}'\n")
    code = f"import holdfast\nfor name in {NAMES}: print(__import__(name).OWNER)"
    try:
        process = installation.run(installation.python, "-c", code, cwd=tmp_path)
    finally:
        for path in owned.values():
            shutil.rmtree(path.parent)
    assert process.stdout.splitlines() == [f"the host, {name}" for name in NAMES], process.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_files_of_the_pages_are_installed(installation, tmp_path):
    """The pages, their scripts and their styles come with each installation."""
    script = (
        "from holdfast.bootstrap.web.watch_app import STATIC; print(*sorted(each.name for each in STATIC.iterdir()))"
    )
    process = installation.run(installation.python, "-c", script, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == sorted(path.name for path in (ROOT / "bootstrap/web/static").iterdir())
