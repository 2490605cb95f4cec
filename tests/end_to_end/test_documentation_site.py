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


def collect(*arguments):
    """Run the script that collects the pages of the site."""
    command = [sys.executable, "scripts/site_pages.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_pages_are_collected_in_a_folder_of_their_own(tmp_path):
    """A new folder is filled, a folder with other files is left as it is, and without a folder the usage is printed."""
    pages, mine = tmp_path / "pages", tmp_path / "mine"
    assert collect(str(pages)).returncode == 0
    assert {path.name for path in pages.glob("*.md")} >= OWN_PAGES
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    for arguments, words in (([str(mine)], "so it is not emptied: name another folder"), ([], "usage:")):
        done = collect(*arguments)
        assert done.returncode == 2
        assert words in done.stderr
    assert (mine / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    """Every page is built without a warning, the list of settings has its rows, and no page loads from elsewhere."""
    pytest.importorskip("zensical", reason="needs the extra docs")
    pages = tmp_path / "build" / "pages"
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    assert collect(pages).returncode == 0
    build = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "mkdocs.yml"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "build" / "site"
    assert {path.stem for path in site.glob("*.html")} >= {name.removesuffix(".md") for name in OWN_PAGES}
    assert "optimizer.learning_rate" in (site / "settings.html").read_text(encoding="utf-8")
    loaded = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"?(https?://[^\"> ]+)")
    assert not {url for page in site.rglob("*.html") for url in loaded.findall(page.read_text(encoding="utf-8"))}
