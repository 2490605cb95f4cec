"""Entry points of other packages that fail."""

from __future__ import annotations

import sys

import pytest

from tests.support.command_line import corpus, run_here, tiny

IMPORTED = {
    "raises": "raise RuntimeError('no licence found')",
    "exits": "import sys; sys.exit('no licence found')",
}
MADE = {
    "raises": "def make(bus, inbox): raise RuntimeError('no licence found')",
    "refuses": "def make(bus, inbox): raise ValueError('no licence found')",
    "exits": "import sys\ndef make(bus, inbox): sys.exit('no licence found')",
}
USED = {
    "raises": "def fail(): raise RuntimeError('no licence found')",
    "exits": "import sys\ndef fail(): sys.exit('no licence found')",
}
SOURCE = """
from holdfast.ports.basic import BasicDataSource

class make(BasicDataSource):
    def units(self):
        fail()

    def read(self, unit, start=0):
        fail()

    def fingerprint(self):
        return "failing"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a function that installs a package with one entry point, and a place to run."""
    corpus(tmp_path)

    def install(group, code):
        place = tmp_path / "packages"
        (place / "failing_extra-2.5.dist-info").mkdir(parents=True)
        (place / "failing_extra-2.5.dist-info/METADATA").write_text("Name: failing-extra\nVersion: 2.5\n")
        (place / "failing_extra-2.5.dist-info/entry_points.txt").write_text(f"[{group}]\nours = failing_extra:make\n")
        (place / "failing_extra.py").write_text(code)
        monkeypatch.syspath_prepend(place)
        monkeypatch.delitem(sys.modules, "failing_extra", raising=False)
        return tmp_path

    yield install
    sys.modules.pop("failing_extra", None)


def told(process, folder, error, when):
    """Return the exit code of ``process``, which told one sentence and left the traceback in the post-mortem."""
    (file,) = folder.glob("runs/*/post-mortem/*/rank0/traceback.txt")
    assert "failing_extra.py" in file.read_text()
    assert "Traceback" not in process.stderr + process.stdout
    line = process.stderr.splitlines()[-1]
    assert "'ours' of holdfast." in line
    assert "the package failing-extra 2.5" in line
    assert f"raised {error}: no licence found {when}" in line
    assert str(file.parent.relative_to(folder)) in line
    return process.returncode


@pytest.mark.parametrize(("how", "error"), [("raises", "RuntimeError"), ("exits", "SystemExit")])
def test_a_package_that_fails_at_import(home, how, error):
    """What cannot be imported is a wrong configuration: one sentence names what, whose and why."""
    folder = home("holdfast.transform", IMPORTED[how])
    process = run_here("train", *tiny(folder), "run.name=x", "data.transforms=[{kind: ours}]", cwd=folder)
    assert told(process, folder, error, "when it was imported") == 2


@pytest.mark.parametrize(
    ("how", "error"), [("raises", "RuntimeError"), ("refuses", "ValueError"), ("exits", "SystemExit")]
)
def test_a_plug_in_that_cannot_be_made(home, how, error):
    """What cannot be made is a wrong configuration too, whatever it raises."""
    folder = home("holdfast.handler", MADE[how])
    process = run_here("train", *tiny(folder), "run.name=x", "handlers=[{kind: ours}]", cwd=folder)
    assert told(process, folder, error, "when it was made") == 2


@pytest.mark.parametrize(("how", "error"), [("raises", "RuntimeError"), ("exits", "SystemExit")])
def test_a_plug_in_that_fails_in_use(home, how, error):
    """What fails in use ends the run with code 1 and the same sentence: it is no fault of Holdfast."""
    folder = home("holdfast.data_source", USED[how] + SOURCE)
    settings = [setting for setting in tiny(folder) if not setting.startswith(("data.kind", "data.path"))]
    process = run_here("train", *settings, "run.name=x", "data.kind=ours", cwd=folder)
    assert told(process, folder, error, "in use") == 1


def test_an_adapter_that_lacks_methods_of_its_port(home):
    """An adapter that leaves a method of its port out is refused before anything is made, and told what to add."""
    source = SOURCE.replace("BasicDataSource", "DataSource").replace(
        "holdfast.ports.basic", "holdfast.ports.data_source"
    )
    folder = home("holdfast.data_source", source)
    settings = [setting for setting in tiny(folder) if not setting.startswith(("data.kind", "data.path"))]
    process = run_here("train", *settings, "run.name=x", "data.kind=ours", cwd=folder)
    assert process.returncode == 2
    assert "the package failing-extra 2.5, lacks bytes_read, confirming, expect, " in process.stderr
    assert "holdfast.ports.basic" in process.stderr
    assert "Traceback" not in process.stderr
