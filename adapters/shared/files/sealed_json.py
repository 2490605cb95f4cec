"""JSON objects that hold a hash of their other members, so that damage which leaves valid JSON is found."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

HASH = "hash"
"""The name of the member that holds the hash."""


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
