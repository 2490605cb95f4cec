"""A user's own folders and packages may be called as those of this repository are."""

from __future__ import annotations

import pytest

from tests.support.command_line import corpus, tiny
from tests.support.installations import (
    ROOT,
    build_wheel,
    copy_tree,
    install,
    install_into,
    make_environment,
    uninstall,
)

NAMES = ("adapters", "application", "configs", "domain", "ports", "tests")
HOST = f"""
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "host"
version = "1.0"
[tool.setuptools]
packages = {list(NAMES)}
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
    (tmp_path / "service.py").write_text((ROOT / "tests/support/sample_host.py").read_text("utf-8"))
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


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return what each form of an installation is made of: a copy of this tree, or the wheel of it."""
    folder = tmp_path_factory.mktemp("sources")
    tree = copy_tree(folder / "tree")
    return {"editable": tree, "wheel": build_wheel(tree, folder)}


@pytest.fixture
def host(tmp_path):
    """Return the project of a host that has packages of these names, each of which says so."""
    for name in NAMES:
        (tmp_path / "host" / name).mkdir(parents=True)
        for file in ("__init__.py", "__main__.py"):
            (tmp_path / "host" / name / file).write_text(f"OWNER = 'the host, {name}'\n")
    (tmp_path / "host/pyproject.toml").write_text(HOST)
    return tmp_path / "host"


def files_of(*folders):
    """Return the content of each file below ``folders``, but for what Python compiles and notes of an installation."""
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in found if path.suffix == ".py"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_first", [True, False], ids=["host-first", "host-last"])
@pytest.mark.parametrize("of_host", ["host-wheel", "host-editable"])
@pytest.mark.parametrize("form", ["wheel", "editable"])
def test_a_host_keeps_its_own_packages(form, of_host, is_first, sources, host, tmp_path):
    """Installed before or after Holdfast, and once that is uninstalled, a host finds its own packages as they were."""
    made = make_environment(tmp_path / "environment")
    (packages,) = made.folder.glob("lib/python*/site-packages")
    code = f"for name in {NAMES}: print(__import__(name).OWNER, __import__(name + '.__main__').__main__.OWNER)"
    expected = [f"the host, {name} the host, {name}" for name in NAMES]
    steps = [
        lambda: install_into(made, host, editable=of_host == "host-editable"),
        lambda: install_into(made, sources[form], editable=form == "editable"),
    ]
    for step in steps if is_first else reversed(steps):
        step()
    assert made.run(made.python, "-c", "import holdfast", cwd=tmp_path).returncode == 0
    assert made.run(made.python, "-c", code, cwd=tmp_path).stdout.splitlines() == expected
    own = files_of(host, *(packages / name for name in NAMES))
    uninstall(made, "holdfast-lm")
    assert not list(packages.glob("*holdfast*"))
    assert made.run(made.python, "-c", code, cwd=tmp_path).stdout.splitlines() == expected
    assert files_of(host, *(packages / name for name in NAMES)) == own


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
