"""One term of an archive's lease."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One term of a lease, as its object says; ``fence`` is the number of its holder's first term.

    ``expires_at`` is by the holder's clock, 0 once it was given back. ``place`` tells where ``pid`` is a process: this
    boot of this machine and its namespace of processes, empty where nobody can tell.
    """

    holder: str
    host: str
    pid: int
    fence: int
    expires_at: float
    place: str = ""

    @property
    def is_released(self) -> bool:
        """Return whether the holder gave it back."""
        return self.expires_at == 0

    def to_bytes(self) -> bytes:
        """Return the term as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaseRecord | None:
        """Return what ``to_bytes`` wrote, None for anything else: its writer was killed, or writes just now."""
        try:
            record = json.loads(data)
            return cls(
                str(record["holder"]),
                str(record["host"]),
                int(record["pid"]),
                int(record["fence"]),
                float(record["expires_at"]),
                str(record.get("place", "")),
            )
        except (ValueError, TypeError, KeyError):
            return None


def pid_namespace() -> str:
    """Return where the numbers of processes mean what they mean here, nothing where nobody can tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
