"""Keeps libraries that load or quantize models from writing bars, warnings and logs between our lines."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def silenced() -> Iterator[None]:
    """Within the block, ignore warnings and all text for Python's standard streams; errors are raised."""
    nowhere = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        yield
