import json
import math

import pytest
import torch
from safetensors.torch import save_file

from holdfast.bootstrap.verification.resume import (
    Difference,
    StateComparison,
    Verdict,
    compare_states,
    differing_positions,
    differing_steps,
    is_rounding,
)
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import CheckpointInfo

STEP = {"tokens": 8, "lr": 0.1, "loss": 2.0, "grad_norm": 1.0}


def checkpoint(step, **cursor):
    return CheckpointInfo(Progress(step, step * 8, Cursor(**cursor)), "periodic", "", 0)


def verdict(*differences, state=None, resumed_from=2, promises_bits=True):
    conditions = {"device": "cpu"}
    return Verdict(6, 4, 2, resumed_from, promises_bits, conditions, differences, state or StateComparison(3, 100))


def states(tmp_path, first, second):
    folders = tmp_path / "first", tmp_path / "second"
    for folder, tensors in zip(folders, (first, second), strict=True):
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        (folder / "MANIFEST.json").write_text(str(folder))
    return folders


def test_the_first_figure_that_differs_is_named():
    """Steps are compared in order and by each figure; one that is missing is a difference, and so is no number."""
    first = {1: STEP, 2: STEP, 3: STEP | {"loss": "NaN"}, 4: STEP}
    second = {1: STEP, 2: STEP | {"grad_norm": 1.5}, 3: STEP | {"loss": "NaN"}}
    found = [(step, what.what, what.values) for step, what in differing_steps(first, second)]
    assert found[0] == (2, "grad_norm", (1.0, 1.5))
    assert [(step, name) for step, name, _ in found[1:]] == [
        (4, name) for name in ("tokens", "lr", "loss", "grad_norm")
    ]


def test_a_position_that_differs_is_named():
    """Samples, lanes and missing checkpoints are told with both values."""
    first = [checkpoint(2, samples=8), checkpoint(4, lanes=(LanePosition(0, 1, 2, 3),)), checkpoint(6)]
    second = [checkpoint(2, samples=9), checkpoint(4, lanes=(LanePosition(0, 1, 2, 4),))]
    found = [(step, what.what, tuple(what.values)) for step, what in differing_positions(first, second)]
    assert found == [
        (2, "sample", ("8", "9")),
        (4, "lanes", ("[[0, 1, 2, 3]]", "[[0, 1, 2, 4]]")),
        (6, "checkpoint", ("saved", "missing")),
    ]


def test_equal_states_are_equal_but_for_their_manifests(tmp_path):
    """Tensors are compared bit by bit, not-a-number too; manifests are each checkpoint's own."""
    tensors = {"a": torch.tensor([1.0, math.nan]), "b": torch.tensor(3)}
    found = compare_states(*states(tmp_path, tensors, tensors))
    assert (found.num_tensors, found.num_differing, found.first) == (2, 0, None)


def test_the_first_and_the_largest_difference_are_named(tmp_path):
    """Of tensors that differ, the first and the one with the largest distance are told with place and values."""
    first = {"a": torch.zeros(2, 2), "b": torch.tensor(1.0), "c": torch.ones(3)}
    second = {"a": torch.tensor([[0.0, 0.0], [0.5, 0.0]]), "b": torch.tensor(4.0), "c": torch.ones(3)}
    found = compare_states(*states(tmp_path, first, second))
    assert (found.num_differing, found.is_alike) == (2, True)
    assert (found.first.where, found.first.values) == ("model.safetensors a[1, 0]", [0.0, 0.5])
    assert (found.largest.where, found.largest.distance) == ("model.safetensors b[]", 3.0)


@pytest.mark.parametrize(
    "other", [{}, {"a": torch.ones(3)}, {"a": torch.ones(2, dtype=torch.int32)}, {"a": torch.tensor([1.0, math.inf])}]
)
def test_another_form_is_no_rounding(other, tmp_path):
    """A tensor that is missing, has another shape or type, or is not finite on one side is more than rounding."""
    found = compare_states(*states(tmp_path, {"a": torch.ones(2)}, {"z": torch.ones(1), **other}))
    assert not found.is_alike
    assert verdict(state=found, promises_bits=False).word == "different"


def test_other_files_are_compared_byte_by_byte(tmp_path):
    """Where a file that holds no tensors differs is told, and one that only one checkpoint has."""
    folders = states(tmp_path, {}, {})
    for folder, text in zip(folders, ("[1, 2]", "[1, 3]"), strict=True):
        (folder / "optimizer.json").write_text(text)
    found = compare_states(*folders)
    assert (found.first.where, found.first.values) == ("optimizer.json from byte 4 on", ["b'2]'", "b'3]'"])
    (folders[1] / "optimizer.json").unlink()
    assert compare_states(*folders).first.values == ["there", "missing"]


def test_the_promise_decides_what_holds():
    """Equality within rounding is enough for a run that promises no more; positions must be equal all the same."""
    close = Difference("loss", "step 3", (2.0, 2.0001))
    far = Difference("loss", "step 3", (2.0, 2.5))
    sample = Difference("sample", "step 4", ("8", "9"))
    assert is_rounding(close, 1e-3)
    assert verdict().holds
    assert (verdict(close).word, verdict(close).holds) == ("within rounding", False)
    assert verdict(close, promises_bits=False).holds
    assert not verdict(far, promises_bits=False).holds
    assert not verdict(sample, promises_bits=False).holds
    assert verdict(resumed_from=0).word == "different"


def test_a_difference_before_the_kill_is_told_as_such():
    """Steps that differ before the kill are no fault of the resume, and the report says so."""
    assert "before the kill" in "\n".join(verdict(Difference("loss", "step 2", (2.0, 2.5))).lines())
    assert "before the kill" not in "\n".join(verdict(Difference("loss", "step 3", (2.0, 2.5))).lines())


def test_the_report_is_json():
    """Programs get the verdict and the first difference, and figures that JSON does not have as text."""
    record = json.loads(verdict(Difference("tensor", "x", (1.0, math.nan))).to_json())
    assert (record["verdict"], record["holds"]) == ("different", False)
    assert record["first_difference"] == {"what": "tensor", "where": "x", "undisturbed": 1.0, "resumed": "nan"}
