"""Collects the pages of the documentation site: those of docs/, and the files that they link to."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages into the folder that the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    text = "the folder of the pages: a new one, or one below build/, which is emptied first"
    parser.add_argument("target", type=Path, metavar="FOLDER", help=text)
    target = parser.parse_args(arguments).target.resolve()
    is_ours = target.is_relative_to(BUILD) and target != BUILD
    if target.exists() and not (is_ours and target.is_dir()):
        parser.error(f"{target} exists and is no folder below {BUILD}, so it is not emptied: name another folder")
    collect(target)
    return 0


def collect(target: Path) -> None:
    """Write the pages into the folder ``target``, which is deleted first if it exists."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(ROOT / "docs", target)
    waiting = [(page, target / page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))]
    done = {destination for _, destination in waiting}
    while waiting:
        source, destination = waiting.pop()
        text = _as_page(source)
        links = _links_of(text) if source.suffix == ".md" else set()
        places = {link: _place(target, (source.parent / link).resolve()) for link in links}
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.write_text(_LINK.sub(_to_place(places, destination), text), encoding="utf-8")
        for link, place in places.items():
            if place.suffix == ".md" and place not in done:
                done.add(place)
                waiting.append(((source.parent / link).resolve(), place))
            elif not place.exists() and place.suffix != ".md":
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source.parent / link, place)


def _as_page(source: Path) -> str:
    """Return ``source`` as Markdown: a page as it is, a folder as a list, another text as a block of code."""
    if source.suffix == ".md":
        return source.read_text(encoding="utf-8")
    name = source.relative_to(ROOT).as_posix()
    if source.is_dir():
        return f"# {name}\n\n" + "".join(f"- `{each.name}`\n" for each in sorted(source.iterdir()) if each.is_file())
    language = _LANGUAGES.get(source.suffix, "")
    return f"# {name}\n\n~~~~{language}\n{source.read_text(encoding='utf-8')}~~~~\n"


def _links_of(text: str) -> set[str]:
    return {match["path"] for match in _LINK.finditer(_FENCED.sub("", text))}


def _place(target: Path, linked: Path) -> Path:
    """Return where ``linked`` lies on the site; what is neither a page nor a picture becomes a page of its text."""
    if linked.is_relative_to(ROOT / "docs"):
        return target / linked.relative_to(ROOT / "docs")
    name = linked.relative_to(ROOT)
    return target / "source" / (name if name.suffix == ".md" else name.with_name(f"{name.name}.md"))


def _to_place(places: dict[str, Path], destination: Path) -> Callable[[re.Match[str]], str]:
    def replaced(link: re.Match[str]) -> str:
        if (place := places.get(link["path"])) is None:
            return link[0]
        path = Path(os.path.relpath(place, destination.parent)).as_posix()
        return f"]({path}{link['anchor'] or ''})"

    return replaced


if __name__ == "__main__":
    sys.exit(main())
