"""The configurations that come with this package."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def find_file(path: Path) -> Path:
    """Return ``path``, or the file of this package with the same name if there is no file at ``path``.

    ``own_text``, ``own_text.yaml`` and ``configs/own_text.yaml`` all name the file of this package.
    """
    if path.exists() or path.is_absolute() or path.parent not in (Path(), Path("configs")):
        return path
    named = path.name if path.suffix else f"{path.name}.yaml"
    shipped = FOLDER / named
    return shipped if shipped.suffix in (".yaml", ".json") and shipped.is_file() else path


def shown_name(path: Path) -> str:
    """Return the name of a file that ``find_file`` found, for messages."""
    found = find_file(path)
    return str(path) if found == path else f"{found.name} of this package"


def list_ready() -> str:
    """Return a line for each configuration: its name and its purpose."""
    lines = [(path.stem, _purpose(path)) for path in sorted(FOLDER.glob("*.yaml"))]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:{width}}{purpose}" for name, purpose in lines)


def _purpose(path: Path) -> str:
    """Return the first sentence of the comment that the file begins with."""
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        comment.append(line.removeprefix("# "))
    return " ".join(comment).split(". ")[0].split(": ")[0].rstrip(".:") + "."
