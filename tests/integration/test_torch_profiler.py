import gzip
import json

import torch

from holdfast.adapters.shared.device.torch_profiler import TorchProfiler


def test_a_profile_is_a_trace_and_a_table(tmp_path):
    """The profiler writes a Chrome trace with the operators and the ends of steps, and a table by time and memory."""
    folder = tmp_path / "run" / "profile"
    profiler, matrix = TorchProfiler(folder), torch.ones(64, 64)
    profiler.start(3)
    matrix = matrix @ matrix.clone()
    profiler.step()
    matrix = matrix @ matrix.clone()
    where = profiler.stop("steps-3-4")
    with gzip.open(folder / "steps-3-4.trace.json.gz", "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"aten::mm", "ProfilerStep#3", "ProfilerStep#4"} <= names
    by_time, _, by_memory = (folder / "steps-3-4.txt").read_text().partition("Operators by their own memory")
    assert "aten::mm" in by_time
    assert "aten::mm" in by_memory
    assert str(folder / "steps-3-4.txt") in where


def test_a_profiler_can_be_started_again(tmp_path):
    """What a second profile holds is what ran since its own start."""
    profiler = TorchProfiler(tmp_path)
    for name, act in (("first", torch.exp), ("second", torch.sin)):
        profiler.start(1)
        act(torch.ones(8))
        profiler.stop(name)
    second = (tmp_path / "second.txt").read_text()
    assert "aten::sin" in second
    assert "aten::exp" not in second
