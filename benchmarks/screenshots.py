"""Pictures of a run in the terminal, the live page, the report and the chat, for README and docs.

``python -m benchmarks.screenshots [--output FOLDER]`` needs Playwright and Chromium, tmux for the terminal, and the
extra ``page`` for the live page and the chat. It trains the default run, kills it once after half of its steps and
continues it, and trains a second run with a lower learning rate, all in a few minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.smoke import SMALL_RUN, add_smoke, end_smoke, has_peer, say_skipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT = Path(__file__).resolve().parents[1]
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ADDRESS = re.compile(r"https?://\S+")
_PYTHON = "python -m application"
_SETTINGS = (
    "evaluation.every=25",
    "state_store.every=25",
    'evaluation.prompts=["def main(arguments):", "class Queue:"]',
)
_OTHER = ("run.name=lower-rate", "optimizer.learning_rate=3e-3")
_KILLED_AFTER = 80
_SECONDS_TO_TRAIN = 900
_COLUMNS, _LINES = 100, 60
_NARROW = 500
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
    parser.add_argument("--output", type=Path, default=Path("docs"), help="the folder of the pictures (docs)")
    add_smoke(parser)
    options = parser.parse_args()
    if options.smoke:
        _try()
        return 0
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with _room():
        _take_terminal(folder / "run.svg")
        run, other = Path("runs/default"), Path("runs/lower-rate")
        shutil.rmtree(run)
        _train_and_kill(run)
        _command("train", *_SETTINGS)
        _command("train", *_SETTINGS, *_OTHER)
        _command("report", str(run), "--output", "report.html")
        _take([Picture("report", Path("report.html").absolute().as_uri(), "light", 1200, 1000)], folder)
        _take_served("watch", [run], [_page(), _page("-dark", "dark"), _page("-narrow", width=400)], folder)
        _take_served("watch", [run, other], [_page("-runs")], folder)
        _take_served("chat", [run], [_page(name="chat", prompt=_PROMPT)], folder)
    return 0


def _try() -> None:
    """Draw the terminal of a small run, and take pictures of its pages, as far as what they need is installed."""
    small = (*SMALL_RUN, "run.name=default", "run.budget.steps=2")
    run, made = Path("runs/default"), ["report.html"]
    with _room() as folder:
        if shutil.which("tmux"):
            _take_terminal(folder / "run.svg", *small)
            made.append("run.svg")
        else:
            say_skipped("tmux is not installed")
            _command("train", *small)
        _command("report", str(run), "--output", "report.html")
        if not any(map(shutil.which, _BROWSERS)):
            say_skipped("Chromium is not installed")
        elif all(has_peer(package, is_smoke=True) for package in ("playwright", "starlette")):
            _take([Picture("report", Path("report.html").absolute().as_uri(), "light", 1200, 1000)], folder)
            _take_served("watch", [run], [_page()], folder)
            made += ["report.png", "page.png"]
        missing = [name for name in made if not (folder / name).exists()]
    end_smoke([f"{name} was not made" for name in missing])


@contextmanager
def _room() -> Iterator[Path]:
    """Work in a new folder within the block; give the folder."""
    with tempfile.TemporaryDirectory() as room:
        os.chdir(room)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        yield Path(room)
        os.chdir(_ROOT)


def _page(
    end: str = "", scheme: str = "light", *, width: int = 1200, name: str = "page", prompt: str | None = None
) -> Picture:
    return Picture(f"{name}{end}", "", scheme, width, 900 if width > _NARROW else 860, prompt)


def _take_terminal(path: Path, *words: str) -> None:
    """Train the default run, with ``words``, in a terminal of its own, and draw the screen at its end."""
    from rich.console import Console
    from rich.text import Text

    if shutil.which("tmux") is None:
        sys.exit("tmux, which draws the terminal, is missing: install the package tmux")
    command = " ".join((_PYTHON, "train", *words))
    server = ["tmux", "-L", f"pictures-{os.getpid()}"]
    size = ["-x", str(_COLUMNS), "-y", str(_LINES)]
    shell = f"PS1='$ ' PATH={Path(sys.executable).parent}:$PATH exec bash --norc --noprofile"
    subprocess.run([*server, "new-session", "-d", *size, shell], check=True)
    try:
        subprocess.run([*server, "send-keys", f"clear; {command}", "Enter"], check=True)
        screen, deadline = "", time.monotonic() + _SECONDS_TO_TRAIN
        while not re.search(r"^try next:[^$]*\n\$", screen, re.MULTILINE):
            if time.monotonic() > deadline:
                sys.exit(f"the default run has not ended in time, or has failed:\n{screen}")
            time.sleep(1.0)
            screen = subprocess.run([*server, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout
        colored = subprocess.run([*server, "capture-pane", "-e", "-p"], check=True, capture_output=True, text=True)
    finally:
        subprocess.run([*server, "kill-server"], check=False)
    lines = colored.stdout.rstrip().rstrip("$").rstrip().splitlines()
    console = Console(record=True, width=_COLUMNS, file=StringIO())
    console.print(Text.from_ansi("\n".join([f"$ {command}", *lines])))
    console.save_svg(str(path), title="Holdfast")
    print(path)


def _train_and_kill(run: Path) -> None:
    """Train until step ``_KILLED_AFTER``, and kill the run."""
    with subprocess.Popen([sys.executable, "-m", "application", "train", *_SETTINGS]) as process:
        metrics = run / "metrics.jsonl"
        while process.poll() is None:
            if metrics.exists() and f'"step": {_KILLED_AFTER},' in metrics.read_text(encoding="utf-8"):
                process.send_signal(signal.SIGKILL)
                return
            time.sleep(0.1)
    sys.exit(f"the run ended before step {_KILLED_AFTER}, so it was not killed")


def _command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "application", *arguments], check=True)


def _take_served(command: str, runs: Sequence[Path], pictures: Sequence[Picture], folder: Path) -> None:
    with _served(command, *map(str, runs)) as address:
        if address is None:
            sys.exit(f"{command} served no page")
        _take([replace(each, address=address) for each in pictures], folder)


@contextmanager
def _served(command: str, *runs: str) -> Iterator[str | None]:
    """Give the address that ``command`` serves ``runs`` at, None if it serves none."""
    words = [sys.executable, "-m", "application", command, *runs, "--port", "0"]
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
