"""Environments of their own in which this tree is installed, as a wheel or editable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = (
    "adapters", "application", "bootstrap", "configs", "domain", "holdfast", "ports", "scripts",
    "LICENSE", "README.md", "pyproject.toml", "setup.py",
)  # fmt: skip


@dataclass(frozen=True)
class Installation:
    """A virtual environment in ``folder`` that has the dependencies of this one and an installation of its own."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin/python")

    @property
    def command(self) -> str:
        return str(self.folder / "bin/holdfast")

    def run(self, *command: str, cwd: Path, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        """Run ``command`` in ``cwd`` with the programs of this environment and nothing of the tree on its path."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"PATH": f"{self.folder / 'bin'}:{environment['PATH']}", "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            command, cwd=cwd, env=environment, text=True, capture_output=True, timeout=timeout, check=False
        )


def install(folder: Path, *, editable: bool) -> Installation:
    """Build a copy of this tree in ``folder`` and install it into a new environment there."""
    tree, environment = folder / "tree", folder / "environment"
    tree.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree)
    _checked([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    (packages,) = environment.glob("lib/python*/site-packages")
    # a path in such a file is searched, and the files of this kind that lie there, as of this tree's own editable
    # installation, are not read
    dependencies = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(environment / "bin/python")]
    build = ["--no-deps", "--no-build-isolation"]
    if editable:
        _checked([*pip, "install", "--ignore-installed", *build, "--editable", str(tree)])
    else:
        _checked([*pip, "wheel", *build, "--wheel-dir", str(folder), str(tree)])
        (wheel,) = folder.glob("*.whl")
        _checked([*pip, "install", "--ignore-installed", "--no-deps", "--no-index", str(wheel)])
        shutil.rmtree(tree)
    return Installation(environment)


def _checked(command: Sequence[str]) -> None:
    process = subprocess.run(command, text=True, capture_output=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
