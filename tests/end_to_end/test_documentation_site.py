"""The documentation as a site."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.support.command_line import ROOT

NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
OWN_PAGES = {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_navigation_names_every_page():
    """Each page of docs/ stands in the navigation once, and no other page does."""
    named = re.findall(r": (\S+\.md)$", NAV, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) == OWN_PAGES


def test_the_start_page_leads_to_every_page():
    """docs/index.md links to each other page of docs/."""
    linked = re.findall(r"\]\((\S+?\.md)\)", (ROOT / "docs/index.md").read_text(encoding="utf-8"))
    assert set(linked) >= OWN_PAGES - {"index.md"}


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    """Every page is built without a warning, the list of settings has its rows, and no page loads from elsewhere."""
    pytest.importorskip("zensical", reason="needs the extra docs")
    pages = tmp_path / "build" / "pages"
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for command in (["scripts/site_pages.py", pages], ["-m", "zensical", "build", "--strict", "-f", "mkdocs.yml"]):
        folder = ROOT if command[0].endswith(".py") else tmp_path
        done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "build" / "site"
    assert {path.stem for path in site.glob("*.html")} >= {name.removesuffix(".md") for name in OWN_PAGES}
    assert "optimizer.learning_rate" in (site / "settings.html").read_text(encoding="utf-8")
    loaded = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)")
    assert not {url for page in site.rglob("*.html") for url in loaded.findall(page.read_text(encoding="utf-8"))}
