"""The difference between names on the Hugging Face hub and paths of folders, and names that are like a path."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HUB_SCHEME = "hf://"
_TRUE = {"1", "ON", "YES", "TRUE"}  # as huggingface_hub reads it


def names_folder(path: str) -> bool:
    """Return whether ``path`` can only be a folder or file: a name on the hub has one slash at most."""
    return path.startswith(("/", ".", "~")) or path.count("/") > 1


def is_kept_offline(environ: Mapping[str, str]) -> bool:
    """Return whether ``environ`` forbids asking the hub, without importing its client."""
    return any(environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def nearest_name(path: Path) -> Path | None:
    """Return the entry beside ``path`` whose name is most like its name, None if no name is like it."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return None
    near = get_close_matches(path.name, names, n=1, cutoff=0.8)
    return path.with_name(near[0]) if near else None


def guess(path: str) -> str:
    """Return "; did you mean ...?" with the entry whose name is most like ``path``; empty if there is one or none."""
    place = expanded(path)
    near = None if place.exists() else nearest_name(place)
    return "" if near is None else f"; did you mean {'the folder ' if near.is_dir() else ''}{near}?"
