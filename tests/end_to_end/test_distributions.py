"""The wheel and the source distribution, used outside the repository."""

from __future__ import annotations

import ast
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from holdfast.configs.ready_configurations import ready_names
from holdfast.version import __version__
from tests.support.command_line import corpus, tiny
from tests.support.container_file import copied
from tests.support.installations import (
    ROOT,
    build_sdist,
    build_wheel,
    copy_tree,
    install,
    install_wheel,
    link_dependencies,
    make_environment,
)
from tests.support.rules.source_tree import PACKAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Return the source distribution, the wheel that is built from it, and the wheel that is built from the tree."""
    folder = tmp_path_factory.mktemp("distributions")
    tree = copy_tree(folder / "tree")
    sdist = build_sdist(tree, folder)
    return sdist, build_wheel(sdist, folder / "from-sdist"), build_wheel(tree, folder / "from-tree")


@pytest.fixture(scope="module")
def installed(distributions, tmp_path_factory):
    """Return an environment with the wheel that was built from the source distribution."""
    return install_wheel(distributions[1], tmp_path_factory.mktemp("installed") / "environment")


def contents(wheel):
    """Return the content of each file of ``wheel`` by its name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def in_python(installation, code, *, cwd):
    """Return what ``code`` prints in ``installation``; it has to end well."""
    process = installation.run(installation.python, "-c", code, cwd=cwd)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_the_source_distribution_builds_the_wheel(distributions):
    """The wheel from the source distribution is that from the tree, and has every file of the packages."""
    sdist, wheel, from_tree = distributions
    assert contents(wheel) == contents(from_tree)
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    files = {f"holdfast/{path.relative_to(ROOT).as_posix()}" for path in paths if "__pycache__" not in path.parts}
    assert len(files) > 300
    assert files | {"holdfast/py.typed"} <= contents(wheel).keys()
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert not [member.name for member in archive if member.issym() or member.islnk()]
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names


def test_the_image_builds_the_same_wheel(distributions, tmp_path):
    """The wheel from the files that the Dockerfile copies is that from the whole tree."""
    wheel = build_wheel(copy_tree(tmp_path / "tree", copied()), tmp_path)
    assert contents(wheel) == contents(distributions[2])


def test_the_wheel_installs_nothing_else(distributions):
    """Its package is all that it puts into an environment, and its metadata have version and licence."""
    files = contents(distributions[1])
    metadata = f"holdfast_lm-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in files} == {"holdfast", metadata}
    headers = message_from_string(files[f"{metadata}/METADATA"].decode())
    assert (headers["Name"], headers["Version"]) == ("holdfast-lm", __version__)
    assert headers["License-Expression"] == "Apache-2.0"
    assert files[f"{metadata}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_a_model_is_trained_and_exported_in_an_empty_folder(installed, tmp_path):
    """An installed wheel trains, generates and exports under each of its names, and the export loads."""
    corpus(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    settings = tiny(tmp_path / "corpus.jsonl", "run.budget.steps=6", "evaluation.every=0")
    commands = {
        "trains": ([installed.command, "train", *settings], "finished 6 steps"),
        "generates": (["python", "-m", "holdfast", "generate", "runs/default", "--max-new-tokens", "2"], ""),
        "exports": (["python", "-m", "holdfast", "export", "runs/default", "./model"], "loss"),
    }
    for each, (command, expected) in commands.items():
        command[0] = installed.python if command[0] == "python" else command[0]
        process = installed.run(*command, cwd=home)
        assert process.returncode == 0, f"{each}: {process.stdout}{process.stderr}"
        assert expected in process.stdout, each
    code = "from transformers import AutoModelForCausalLM; print(AutoModelForCausalLM.from_pretrained('model').config)"
    assert '"hidden_size": 32' in in_python(installed, code, cwd=home)


def test_ready_configurations_come_with_the_wheel(installed, tmp_path):
    """Each configuration is found by its name in an empty folder, with the file of DeepSpeed that it names."""
    shown = installed.run(installed.command, "config", "--config", "rtx4090", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "rtx4090.yaml of this package" in shown.stdout
    names = ready_names()
    code = (
        "from pathlib import Path\n"
        "from holdfast.bootstrap.cli.main import main\n"
        "from holdfast.configs.ready_configurations import find_file\n"
        f"codes = [int(main(['config', '--config', name])) for name in {names}]\n"
        "files = [find_file(Path(f'configs/ds_{name}.json')).is_file() for name in ('prototype', 'production')]\n"
        "print(); print([codes, files])"
    )
    codes, files = ast.literal_eval(in_python(installed, code, cwd=tmp_path).splitlines()[-1])
    assert codes == [0] * len(names)
    assert files == [True, True]


def test_the_version_is_the_same_in_each_form(installed, tmp_path):
    """A wheel, an editable installation and a checkout that is not installed print the version of the source."""
    editable = install(tmp_path / "editable", editable=True)
    checkout = copy_tree(tmp_path / "checkout")
    alone = make_environment(tmp_path / "alone", [str(link_dependencies(tmp_path / "dependencies"))])
    ways = [(each, [each.command], tmp_path) for each in (installed, editable)]
    ways += [(alone, [alone.python, "-m", name], checkout) for name in ("holdfast", "application")]
    for installation, command, folder in ways:
        process = installation.run(*command, "--version", cwd=folder)
        assert process.stdout == f"holdfast {__version__}\n", f"{command}: {process.stderr}"
    lacks = "import importlib.metadata as m; print([d.name for d in m.distributions() if d.name == 'holdfast-lm'])"
    assert in_python(alone, lacks, cwd=Path("/")) == "[]\n"
