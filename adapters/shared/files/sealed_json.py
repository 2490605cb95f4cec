"""JSON that may come from anywhere, and objects that hold a hash of their members, so that damage is found."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

HASH = "hash"
"""The name of the member that holds the hash."""
_DEEPEST = 100  # lists and objects within each other; none that Holdfast writes has as many
_TOO_DEEP = "its values are nested too deeply"


def parse_json(data: str | bytes) -> Any:
    """Return the value in ``data``; raises ``ValueError`` for anything else, and for one that is nested too deeply."""
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level = [value]
    for _ in range(_DEEPEST):
        within = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        if not (level := [child for children in within for child in children]):
            return value
    raise ValueError(_TOO_DEEP)


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record`` with the hash of its members, in place of an earlier one."""
    members = {name: value for name, value in record.items() if name != HASH}
    return members | {HASH: _hash_of(json.loads(json.dumps(members)))}


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record`` without its hash; one that has none was written by an earlier version.

    Raises ``ValueError`` if the members are not those that were sealed.
    """
    members = dict(record)
    if HASH in members and members.pop(HASH) != _hash_of(members):
        msg = "it is not what was written, as its hash differs"
        raise ValueError(msg)
    return members


def _hash_of(members: Mapping[str, Any]) -> str:
    return blake2b(json.dumps(members, sort_keys=True).encode(), digest_size=16).hexdigest()
