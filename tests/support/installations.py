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
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = (
    "adapters", "application", "bootstrap", "configs", "domain", "holdfast", "ports",
    "LICENSE", "README.md", "pyproject.toml", "setup.py",
)  # fmt: skip
_AS_IT_IS = ("--no-deps", "--no-build-isolation")


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
    tree = copy_tree(folder / "tree")
    if editable:
        made = make_environment(folder / "environment")
        install_into(made, tree, editable=True)
        return made
    wheel = build_wheel(tree, folder)
    shutil.rmtree(tree)
    return install_wheel(wheel, folder / "environment")


def copy_tree(tree: Path, names: Iterable[str] = BUILT_FROM) -> Path:
    """Copy the files and folders ``names`` of this tree to the new folder ``tree``; return it."""
    tree.mkdir(parents=True)
    for name in names:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree)
    return tree


def build_sdist(tree: Path, folder: Path) -> Path:
    """Build the source distribution of ``tree`` into ``folder``; return its path."""
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    _checked([sys.executable, "-c", code, str(folder)], cwd=tree)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of ``source``, a tree or a source distribution, into ``folder``; return its path."""
    _checked([sys.executable, "-m", "pip", "--quiet", "wheel", *_AS_IT_IS, "--wheel-dir", str(folder), str(source)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, environment: Path) -> Installation:
    """Install ``wheel`` into the new virtual environment ``environment``."""
    made = make_environment(environment)
    install_into(made, wheel)
    return made


def install_into(made: Installation, source: Path, *, editable: bool = False) -> None:
    """Install ``source``, a wheel or the folder of a project, into an environment; nothing is downloaded."""
    form = ["--editable"] if editable else []
    _checked([*_pip(made), "install", "--ignore-installed", "--no-index", *_AS_IT_IS, *form, str(source)])


def uninstall(made: Installation, distribution: str) -> None:
    """Remove ``distribution`` from an environment."""
    _checked([*_pip(made), "uninstall", "--yes", distribution])


def make_environment(environment: Path, dependencies: Iterable[str] | None = None) -> Installation:
    """Make the virtual environment ``environment``, in which the folders ``dependencies`` are searched for packages.

    By default they are those of the running environment. A path in a file ``.pth`` is searched, and the files of this
    kind that lie there, as of this tree's own editable installation, are not read.
    """
    if dependencies is None:
        dependencies = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    _checked([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    return Installation(environment)


def link_dependencies(folder: Path) -> Path:
    """Fill the new ``folder`` with links to all installed packages but Holdfast, also without its metadata."""
    folder.mkdir()
    for path in sys.path:
        for entry in Path(path).iterdir() if Path(path).name in {"site-packages", "dist-packages"} else ():
            if "holdfast" not in entry.name and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


def _pip(installation: Installation) -> list[str]:
    return [sys.executable, "-m", "pip", "--quiet", "--python", installation.python]


def _checked(command: Sequence[str], cwd: Path | None = None) -> None:
    process = subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
