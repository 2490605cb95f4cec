from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.rules.source_tree import PACKAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

_HEAVY = ("torch", "transformers", "accelerate", "tensorboard", "tokenizers")
_LINTER = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"


def _python(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the packages that may be spoilt."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "holdfast", tmp_path / "holdfast", symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_contracts_hold():
    """Every import obeys the contracts in pyproject.toml."""
    outcome = _python("-c", _LINTER)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        ("domain/training/budget.py", "import torch", "The core knows no framework"),
        ("ports/optimizer.py", "import transformers", "The core knows no framework"),
        ("domain/training/budget.py", "import holdfast.ports.monitor", "Imports point downwards"),
        ("application/training/loop.py", "import holdfast.adapters.shared", "Imports point downwards"),
        ("configs/settings.py", "import holdfast.application.training.loop", "Imports point downwards"),
        ("application/training/loop.py", "import dependency_injector", "Only bootstrap knows the container"),
        (
            "adapters/optimizer/memory.py",
            "import holdfast.adapters.model_factory.memory",
            "Ports' adapters are strangers",
        ),
        (
            "adapters/shared/device/device_selection.py",
            "import holdfast.adapters.optimizer.memory",
            "Ports' adapters are strangers",
        ),
        ("adapters/colour/__init__.py", '"""A port nobody declared."""', "Ports' adapters are strangers"),
        ("ports/colour.py", '"""A port nobody declared."""', "Ports know no contract suite"),
        ("ports/monitor.py", "import holdfast.ports.testing", "Ports know no contract suite"),
        ("adapters/monitor/memory.py", "import holdfast.ports.testing", "Contract suites are for tests"),
        ("bootstrap/adapter_choice/table.py", "import holdfast.bootstrap.run", "Layers of bootstrap"),
        (
            "bootstrap/stages/prepare/stage.py",
            "import holdfast.bootstrap.stages.fit",
            "A stage knows only earlier stages",
        ),
        ("bootstrap/process/signals.py", "import holdfast.bootstrap.cli.main", "Layers of bootstrap"),
        ("bootstrap/colour/__init__.py", '"""A package nobody declared."""', "Layers of bootstrap"),
        ("application/data/feed.py", "import holdfast.application.training.loop", "No import cycles"),
        ("application/inbox.py", "import holdfast.application.training.loop", "No import cycles"),
    ],
)
def test_a_broken_contract_is_noticed(copy, path, line, contract):
    """An import that a contract forbids fails the linter, which names the contract."""
    spoilt = copy / path
    spoilt.parent.mkdir(exist_ok=True)
    with spoilt.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    outcome = _python("-c", _LINTER, folder=copy)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert f"{contract} BROKEN" in " ".join(outcome.stdout.split()), outcome.stdout + outcome.stderr


def test_starting_up_imports_nothing_heavy():
    """The command line and the settings answer without waiting for torch or transformers."""
    lines = f"""
import pkgutil, sys
import holdfast.application, holdfast.bootstrap, holdfast.configs.settings
for package in (holdfast.application, holdfast.bootstrap):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            __import__(module.name)
print(*(name for name in {_HEAVY} if name in sys.modules))
"""
    outcome = _python("-c", lines)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == [], (
        "imported at start: name it with holdfast.bootstrap.adapter_choice.lazy, or import it where it is used"
    )


def test_the_command_line_explains_itself():
    """`python -m application --help` lists the commands."""
    outcome = _python("-m", "application", "--help")
    assert outcome.returncode == 0, outcome.stderr
    assert "train" in outcome.stdout


def test_help_waits_for_no_library():
    """The help of the command line imports only this package, its type hints and the standard library."""
    lines = """
import sys
before = {name.split(".")[0] for name in sys.modules}
from holdfast.bootstrap.cli.main import main
try:
    main(["train", "--help"])
except SystemExit:
    imported = {name.split(".")[0] for name in sys.modules} - before - {*sys.stdlib_module_names}
    print(*sorted(imported), file=sys.stderr)
"""
    outcome = _python("-c", lines)
    assert "--from-step" in outcome.stdout
    assert outcome.stderr.split() == ["holdfast", "typing_extensions"], (
        "imported for --help: import it in the function that needs it"
    )
