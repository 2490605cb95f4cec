"""Pictures of the live page, the report and the chat of a real run, for README and docs.

``python -m benchmarks.screenshots [--run RUN] [--output FOLDER]`` needs Playwright and Chromium, and the extra ``page``
for the live page and the chat. Without ``--run`` it trains a small run of about a minute. A part
whose command this version lacks is left out with a line.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ADDRESS = re.compile(r"https?://\S+")
_SETTINGS = (
    "run.name=default",
    "run.budget.steps=300",
    "data.sequence_length=128",
    "model.config.hidden_size=96",
    "model.config.intermediate_size=256",
    "model.config.num_hidden_layers=2",
    "tokenizer.vocabulary_size=1024",
    "state_store.every=50",
    "evaluation.every=25",
    "evaluation.max_tokens=8192",
)
_MOST_LOOKS = 40
_PROMPT = "def main(arguments):"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: its file without ending, the address, the color scheme, and the size of the window."""

    name: str
    address: str
    scheme: str
    width: int
    height: int
    prompt: str | None = None


def main() -> int:
    """Take the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path, help="the folder of a run (default: a small one is trained)")
    parser.add_argument("--output", type=Path, default=Path("docs"), help="the folder of the pictures (docs)")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as room:
        run = options.run or _trained(Path(room))
        report = Path(room) / "report.html"
        _command("report", str(run), "--output", str(report))
        pictures = [
            Picture("report", report.as_uri(), "light", 1200, 1000),
            Picture("report-dark", report.as_uri(), "dark", 1200, 1000),
            Picture("report-narrow", report.as_uri(), "light", 400, 860),
        ]
        _take(pictures, options.output)
        for command, prompt in (("watch", None), ("chat", _PROMPT)):
            with _served(command, run) as address:
                if address is None:
                    print(f"{command} is left out: this version does not serve it")
                    continue
                sizes = (("", "light", 1200, 900), ("-dark", "dark", 1200, 900), ("-narrow", "light", 400, 860))
                name = "page" if command == "watch" else command
                pictures = [
                    Picture(f"{name}{end}", address, scheme, width, height, prompt)
                    for end, scheme, width, height in sizes
                ]
                _take(pictures, options.output)
    return 0


def _trained(room: Path) -> Path:
    _command("train", f"run.dir={room / 'run'}", *_SETTINGS)
    return room / "run"


def _command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "application", *arguments], check=True)


@contextmanager
def _served(command: str, run: Path) -> Iterator[str | None]:
    """Give the address that ``command`` serves ``run`` at, None if it serves none."""
    words = [sys.executable, "-m", "application", command, str(run), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            found = (_ADDRESS.search(line) for line in process.stdout)
            yield next((address[0] for address in found if address), None)
        finally:
            process.terminate()


def _take(pictures: Sequence[Picture], folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        sys.exit("needs Chromium, such as Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for each in pictures:
            size: Any = {"width": each.width, "height": each.height}
            scheme: Any = each.scheme
            page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1.5)
            page.goto(each.address)
            page.wait_for_timeout(2_500)
            if each.prompt is not None:
                _talk(page, each.prompt)
            page.screenshot(path=folder / f"{each.name}.png")
            print(folder / f"{each.name}.png")
            page.close()
        browser.close()


def _talk(page: Any, prompt: str) -> None:
    """Write ``prompt`` into the field for text, and wait for the reply: until the page is quiet for three seconds."""
    field = page.locator("textarea:visible").first
    field.fill(prompt)
    field.press("Enter")
    before = ""
    for _ in range(_MOST_LOOKS):
        page.wait_for_timeout(3_000)
        text = page.locator("body").inner_text()
        if text == before:
            break
        before = text


if __name__ == "__main__":
    sys.exit(main())
