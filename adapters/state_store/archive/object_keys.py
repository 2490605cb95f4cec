"""What the keys of an archive's objects say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.adapters.state_store.archive.download import COMMIT_SIZE
from holdfast.adapters.state_store.manifest import COMMIT
from holdfast.adapters.state_store.store_folder import folder_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.adapters.state_store.archive.object_store import ObjectInfo


def is_committed(name: str, found: Mapping[str, ObjectInfo]) -> bool:
    """Return whether the copy of this name is among ``found``, and was brought to its end."""
    commit = found.get(f"{name}/{COMMIT}")
    return commit is not None and commit.size >= COMMIT_SIZE  # one that a kill cut short vouches for nothing


def step_of(key: str) -> int | None:
    """Return the step of whose copy the object ``key`` is a part, None if it is of none."""
    name = key.partition("/")[0]
    digits = name.removeprefix("checkpoint-")
    return int(digits) if digits.isdecimal() and name == folder_name(int(digits)) else None
