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


def ready_names() -> list[str]:
    """Return the names of the configurations of this package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def list_ready() -> str:
    """Return a line for each configuration: its name and its purpose."""
    lines = [(name, _purpose(FOLDER / f"{name}.yaml")) for name in ready_names()]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:{width}}{purpose}" for name, purpose in lines)


def _purpose(path: Path) -> str:
    """Return the first sentence of the comment that the file begins with, behind the line for editors."""
    comment: list[str] = []
    _, *lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if not line.startswith("# "):
            break
        comment.append(line.removeprefix("# "))
    return " ".join(comment).split(". ")[0].split(": ")[0].rstrip(".:") + "."
