"""The job files that the documentation shows are those that its commands print."""

from __future__ import annotations

import pytest

from tests.support.documented_job_files import printed_by, shown

SHOWN = [*shown()]


def test_a_job_file_of_each_kind_is_shown():
    """Each scheduler has its file, and the data are prepared by an array."""
    kinds = {each.command.split()[1] for each in SHOWN}
    assert kinds == {"slurm", "kubernetes", "ray", "skypilot", "torchrun"}
    assert any("--command prepare" in each.command for each in SHOWN)


@pytest.mark.parametrize("each", SHOWN, ids=lambda each: f"{each.page}:{each.command.split()[1]}")
def test_a_shown_file_is_what_the_command_prints(each):
    """If it differs, ``python -m tests.support.documented_job_files`` writes it anew."""
    assert each.file == printed_by(each.command)
