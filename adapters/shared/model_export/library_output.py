"""Keeps libraries that load or quantize models from writing progress bars and warnings between our lines."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def silenced() -> Iterator[None]:
    """Within the block, ignore warnings and whatever is written to Python's standard error; errors are raised."""
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
