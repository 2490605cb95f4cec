"""Takes the lease of another archive for each line that comes, and says whether it worked.

python lease_contender.py URL
"""

from __future__ import annotations

import json
import sys

from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.domain.errors import StateError
from tests.support.archives import objects_at


class HeldError(Exception):
    """Another holds it, and waiting is no use."""


def refuse_to_wait(_: float) -> None:
    raise HeldError


def main(url: str) -> None:
    """Answer each line of the standard input."""
    objects_at(url).find()  # a first client takes long to make
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        lease = ArchiveLease(objects_at(f"{url}/{line.strip()}"), say=lambda _: None, sleep=refuse_to_wait)
        try:
            outcome = lease.acquire()
        except (HeldError, StateError):
            outcome = False
        sys.stdout.write(f"{json.dumps(outcome)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
