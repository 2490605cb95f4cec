from __future__ import annotations

from argparse import Namespace

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.sizes import SIZES
from benchmarks.train.turns import Turn, Way
from benchmarks.turns import WayEndedError

BY_NAME = {size.name: size for size in SIZES}


def test_without_a_gpu_nothing_is_claimed(monkeypatch, capsys):
    """Where there is no CUDA device, every row says so and no goal counts as met or missed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    figures = gpu.measure(Namespace(smoke=False, seconds=1, sizes=list(BY_NAME), ways=gpu.NAMES))
    assert {figure.value for figure in figures} == {gpu.NOT_MEASURED}
    assert {figure.is_met for figure in figures} == {None}
    assert all(any(size.name in figure.name for figure in figures) for size in SIZES)
    assert "has no CUDA GPU" in capsys.readouterr().err


def test_times_of_loops_that_learn_otherwise_do_not_count():
    """A way whose first losses are not Holdfast's is not compared, and the table says that its goal is missed."""
    turns = {"holdfast": [Turn(1.0, 8, (2.0,))] * 2, "bare": [Turn(1.0, 8, (2.1,))] * 2}
    figures = {figure.name: figure for figure in gpu._rows(BY_NAME["124M"], turns, None)}
    assert figures["124M: holdfast / bare loop"].value == "not measured"
    [compared] = [figure for name, figure in figures.items() if "difference of a loss" in name]
    assert compared.value == "bare 5e-02"
    assert compared.is_met is False


def test_figures_follow_from_the_turns_behind_the_first():
    """Rates are medians without the turn that warms up, and MFU is the rate times a token's FLOPs over the peak."""
    turns = {
        name: [Turn(9.0, 1000, (2.0,)), Turn(seconds, 1000, (2.0,), memory_bytes=1 << 30)]
        for name, seconds in (("holdfast", 1.0), ("bare", 1.0), ("trainer", 2.0))
    }
    size = BY_NAME["1B"]
    values = {figure.name: figure.value for figure in gpu._rows(size, turns, peak=size.flops_per_token() * 2000)}
    assert values["1B: tokens/s, holdfast / bare / trainer / fp8"] == "1,000 / 1,000 / 500 / not measured"
    assert values["1B: holdfast / Trainer"] == "2.000x"
    assert values["1B: MFU, holdfast / bare / trainer / fp8"] == "50.0% / 50.0% / 25.0% / not measured"


def test_a_model_that_does_not_fit_is_said_not_to():
    """A way that runs out of memory leaves the others' figures, and its own cell says why it is empty."""
    measured = [Turn(1.0, 8, (2.0,))] * 2
    found = {"holdfast": measured, "trainer": "does not fit"}
    values = [figure.value for figure in gpu._rows(BY_NAME["3B"], found, None)]
    assert "8 / not measured / does not fit / not measured" in values


@pytest.mark.slow
def test_a_way_that_fails_says_what_it_wrote_last():
    """The error of a process that trains reaches the one that measures."""
    with pytest.raises(WayEndedError, match="no_such_section"):
        Way("bare", ["no_such_section.value=1"], steps=1)
