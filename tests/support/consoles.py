"""A console whose output and clock a test holds."""

from __future__ import annotations

import io

from holdfast.adapters.monitor.console import ConsoleMonitor
from holdfast.domain.training.budget import Budget

FIGURES = {"loss": 3.41249, "tokens": 1000, "tokens_per_second": 45213.4, "memory_bytes": 3 * 2**30}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines_of(file):
    return file.getvalue().splitlines()


def console_of(*budget, **options):
    """Return a console whose plain lines bear no time of the day, with time enough on a busy machine to write them."""
    chosen = Budget(*budget) if any(budget) else None
    return ConsoleMonitor(chosen, stamp=lambda: "", **{"close_seconds": 60.0} | options)
