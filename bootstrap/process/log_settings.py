"""Configures the log of this process."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logging() -> None:
    """Send structured log lines to standard error.

    Only the command line calls this: an embedding host keeps its own logging.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a kernel of the hub that is never used
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=_to_standard_error,
        cache_logger_on_first_use=False,
    )


def _to_standard_error(*_: object) -> structlog.PrintLogger:
    # looked up for each line, so that a later redirection of standard error, or its closing, is respected
    return structlog.PrintLogger(sys.stderr)
