"""The parts of the Dockerfile that can be checked without building the image."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest

from holdfast.bootstrap.cli.main import _parser
from tests.support.container_file import arguments, copied, instructions, is_sent, variables
from tests.support.installations import BUILT_FROM, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / "docs/installation.md").read_text(encoding="utf-8")
DOCKER_BUILD = re.findall(r"^docker build (.*)$", PAGE, re.MULTILINE)
DOCKER_RUN = re.findall(r"^docker run (.*)$", PAGE.replace("\\\n", ""), re.MULTILINE)


def test_all_copied_files_exist_and_are_sent():
    """Each file that the image copies is in the repository and passes .dockerignore, and the wheel needs no other."""
    assert all((ROOT / path).exists() for path in copied())
    assert all(is_sent(path) for path in copied())
    assert {path.partition("/")[0] for path in copied()} == set(BUILT_FROM)


@pytest.mark.parametrize("path", [".git/config", "runs/default/run.json", "build/x", "tests/conftest.py", "run.key"])
def test_nothing_else_is_sent(path):
    """Runs, tests, keys and the history of the repository do not reach the builder."""
    assert not is_sent(path)


def test_caches_of_python_are_not_sent():
    """A folder of compiled files inside a package is left out, and the package itself is not."""
    assert not is_sent("domain/__pycache__/events.pyc")
    assert is_sent("domain/events.py")


def test_the_image_installs_what_the_project_allows():
    """The range of torch, the default extras and the default Python are those of pyproject.toml."""
    commands = " ".join(each.text for each in instructions() if each.name == "RUN")
    (torch,) = [line for line in PROJECT["dependencies"] if line.startswith("torch>")]
    assert torch in shlex.split(commands)
    extras = set(arguments()["EXTRAS"].split(","))
    assert extras <= PROJECT["optional-dependencies"].keys()
    shown = set(re.findall(r"kind: (\w+)", PAGE)) & PROJECT["optional-dependencies"].keys()
    assert shown, "the page shows the monitor that Prometheus reads"
    assert shown <= extras
    assert f"Programming Language :: Python :: {arguments()['PYTHON']}" in PROJECT["classifiers"]
    assert arguments()["DEVICE"] == "cpu"


def test_the_program_of_the_image_is_the_console_script():
    """The image starts the console script of the project, as a user other than root, without a health check."""
    found = [each for each in instructions() if each.stage == 1]
    (user,) = [each.text for each in found if each.name == "USER"]
    assert user.partition(":")[0] not in {"root", "0"}
    names = [each.name for each in found]
    assert names.index("USER") > max(number for number, name in enumerate(names) if name == "RUN")
    assert "HEALTHCHECK" not in names
    (program,) = [each.text for each in found if each.name == "ENTRYPOINT"]
    assert program == f'["{next(iter(PROJECT["scripts"]))}"]'


def test_caches_lie_in_the_folder_that_is_mounted():
    """The working directory, the home and the caches are one folder, so a mounted folder holds all that is written."""
    (folder,) = [each.text for each in instructions() if each.name == "WORKDIR" and each.stage == 1]
    assert folder == variables()["HOME"]
    assert folder == variables()["TMPDIR"]  # a folder in it would be missing in one that is mounted
    for name in ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"):
        assert variables()[name].startswith(f"{folder}/")


def test_the_page_names_each_argument():
    """docs/installation.md has a row with the default of each build argument, and its builds pass only those."""
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert rows.keys() == arguments().keys()
    assert all(rows[name] == f"`{arguments()[name]}`" for name in ("DEVICE", "EXTRAS", "PYTHON"))
    assert DOCKER_BUILD
    passed = {name for line in DOCKER_BUILD for name in re.findall(r"--build-arg (\w+)=", line)}
    assert passed <= arguments().keys()


@pytest.mark.parametrize("line", DOCKER_RUN)
def test_each_shown_container_runs_a_command(line):
    """The words behind the name of the image are a command of Holdfast with arguments that it accepts."""
    words = shlex.split(line)
    begin = next(number for number, word in enumerate(words) if word in {"holdfast", "holdfast-cuda"})
    options, others = _parser()[0].parse_known_args(words[begin + 1 :])
    assert callable(options.command)
    assert not [other for other in others if other.startswith("-") or "=" not in other]
