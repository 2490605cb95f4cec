"""The age of this process."""

from __future__ import annotations

import time

import psutil


def process_age() -> float:
    """Return the seconds since this process was started, 0 where the system does not tell."""
    try:
        return max(0.0, time.time() - psutil.Process().create_time())
    except psutil.Error:
        return 0.0
