"""A library that does not fit the others is named in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.command_line import ROOT, corpus, environment, tiny


@pytest.fixture
def broken(tmp_path):
    """Return an environment with a torchvision that raises what one does that does not fit torch."""
    (tmp_path / "site/torchvision").mkdir(parents=True)
    (tmp_path / "site/torchvision/__init__.py").write_text(
        "import torch\nraise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    (tmp_path / "site/torchvision-0.1.dist-info").mkdir()
    (tmp_path / "site/torchvision-0.1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1\n"
    )
    return environment() | {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}


@pytest.mark.slow
def test_a_package_that_ends_the_import_of_transformers_is_named(tmp_path, broken):
    """A torchvision that raises ends a run with 2, and one sentence that says what to do with it."""
    process = subprocess.run(
        [sys.executable, "-m", "application", "train", *tiny(corpus(tmp_path))],
        cwd=tmp_path,
        env=broken,
        text=True,
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    told = (
        "transformers cannot be imported, because torchvision 0.1 raised RuntimeError: operator torchvision::nms does"
    )
    assert told in process.stderr
    assert "uninstall torchvision, or install the version of it that fits torch" in process.stderr
