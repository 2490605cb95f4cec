from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.domain.sizes import shown_size

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("adapters", "application", "bootstrap", "configs", "domain", "ports")
OWN_FORMAT = re.compile(
    r"/ ?(?:1e[369]|2 ?\*\* ?[123]0|1024 ?\*\*)\b[^}\n]*\}|\{[^}]*>> ?[123]0\}|[kKMGT]i?B\", ?\"[KMGT]i?B"
)
NO_SIZES = {
    Path("bootstrap/stages/fit/micro_batch.py"),  # a key of sizes that were found before
    Path("domain/sizes.py"),  # the one place
}


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1023 B"),
        (1023.7, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (1_048_524, "1,023.9 KiB"),
        (1_048_525, "1.0 MiB"),
        (6 << 20, "6.0 MiB"),
        (80 << 30, "80.0 GiB"),
        (80e9, "74.5 GiB"),
        (2 << 40, "2.0 TiB"),
        (2 << 50, "2,048.0 TiB"),
        (float("inf"), "inf TiB"),
        (float("-inf"), "-inf B"),
        (float("nan"), "nan B"),
    ],
)
def test_a_size_has_the_largest_unit_of_which_it_has_one(num_bytes, text):
    """One digit follows the point, and no rounding leads to 1,024 of a unit."""
    assert shown_size(num_bytes) == text


def test_sizes_are_formatted_in_one_place():
    """No other module divides bytes to show them, so that one run has one size everywhere."""
    files = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    assert len(files) > 500
    found = {path.relative_to(ROOT) for path in files if OWN_FORMAT.search(path.read_text(encoding="utf-8"))}
    assert found == NO_SIZES
