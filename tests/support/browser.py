"""Chromium for tests of pages: the browser of the system, driven by Playwright."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")


def program() -> str:
    """Return the path of the browser; the test is skipped without it or without Playwright."""
    pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium, such as Debian's package chromium")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """Give a browser without a window."""
    path = program()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def page_at(opened: Browser, address: str, **options: object) -> Iterator[Page]:
    """Give the page at ``address`` in a window of its own; an error of its scripts fails the test.

    ``options`` are those of a browser context, such as ``viewport`` and ``color_scheme``.
    """
    context = opened.new_context(**options)
    context.set_default_timeout(60_000)  # ms: a browser on a busy machine starts slowly
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    try:
        page.goto(address)
        yield page
    finally:
        context.close()
    assert not [error for error in errors if "Failed to load resource" not in error], errors
