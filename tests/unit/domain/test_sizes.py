from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.domain.sizes import shown_size

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("adapters", "application", "bootstrap", "configs", "domain", "ports")
OWN_FORMAT = re.compile(
    r"/ ?(?:1e[369]|2 ?\*\* ?[123]0|1024 ?\*\*)\b[^}\n]*\}|\{[^}]*>> ?[123]0\}|[KMGT]iB\", ?\"[KMGT]iB"
)
NO_SIZES = {  # a key of sizes that were found before
    Path("bootstrap/stages/fit/micro_batch.py"),
}


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1.0 kB"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.0 MB"),
        (6 << 20, "6.3 MB"),
        (80e9, "80.0 GB"),
        (2e12, "2.0 TB"),
        (2e15, "2,000.0 TB"),
        (float("inf"), "inf TB"),
        (float("-inf"), "-inf B"),
        (float("nan"), "nan B"),
    ],
)
def test_a_size_has_the_largest_unit_of_which_it_has_one(num_bytes, text):
    """One digit follows the point, and no rounding leads to 1000 of a unit."""
    assert shown_size(num_bytes) == text


def test_sizes_are_formatted_in_one_place():
    """No other module divides bytes to show them, so that one run has one size everywhere."""
    files = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    assert len(files) > 500
    found = {path.relative_to(ROOT) for path in files if OWN_FORMAT.search(path.read_text(encoding="utf-8"))}
    assert found == NO_SIZES
