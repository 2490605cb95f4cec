"""The difference between names on the Hugging Face hub and paths of folders."""

from __future__ import annotations


def names_folder(path: str) -> bool:
    """Return whether ``path`` can only be a folder or file: a name on the hub has one slash at most."""
    return path.startswith(("/", ".", "~")) or path.count("/") > 1
