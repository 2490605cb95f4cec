import json
from contextlib import ExitStack, closing

import pytest
import torch

from holdfast.bootstrap.run_folder.folder import RunFolder
from holdfast.bootstrap.stages.build.compilation import compile_model
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget

PARAMETERS = 1000
ON_CPU = {"optimizer.device": "cpu"}


class LanguageModel:
    """A model as far as whoever weighs it looks."""

    model_type = "llama"

    def __init__(self, parameters):
        self.network = torch.nn.Embedding(parameters, 1)
        self.network.config = self


def compiled(*, keep_choice=lambda _, value, __: value, hardware=ON_CPU, report=lambda _: None, **sections):
    settings = TrainSettings(data={"kind": "python_library"}, **sections)
    budget = Budget(**settings.run.budget.model_dump())
    with ExitStack() as stack:
        return compile_model(
            LanguageModel(PARAMETERS), settings, budget, hardware, stack, keep_choice=keep_choice, report=report
        )


def reason(*, hardware=ON_CPU, **sections):
    """Return what ``auto`` is decided to be and why, or None where it is not asked; nothing is compiled."""
    asked = []

    def decide(name, value, reason):
        if name == "model.compile":
            asked.append((value, reason))
            return "none"
        return value

    sections = {"optimizer": {"device": "cpu"}, "run": {"budget": {"steps": 10**9}}} | sections
    compiled(keep_choice=decide, hardware=hardware, **sections)
    return asked[0]


def test_a_run_that_is_not_told_to_compiles_nothing():
    """With auto a short run is not compiled."""
    assert compiled() is None


def test_auto_compiles_a_long_run_on_a_cpu():
    """With auto a run is compiled from 3e14 operations on, counted as 6 x parameters x tokens."""
    tokens = 3 * 10**14 // (6 * PARAMETERS)
    for budget, mode in (({"tokens": tokens + 1}, "default"), ({"tokens": tokens - 1}, "none"), ({"steps": 1}, "none")):
        assert reason(run={"budget": budget})[0] == mode


def on_a_gpu(monkeypatch):
    """Have runs choose a GPU that there is not; nothing is computed on it."""
    monkeypatch.setattr("holdfast.adapters.shared.modeling.torch_compile.has_triton", lambda: True)
    return {"optimizer.device": "cuda"}


def test_auto_compiles_a_long_run_on_a_gpu(monkeypatch):
    """On a GPU it takes 1e17 operations, and equal bits need not be promised."""
    gpu = on_a_gpu(monkeypatch)
    tokens = 10**17 // (6 * PARAMETERS)
    for budget, mode in (({"tokens": tokens + 1}, "default"), ({"tokens": tokens - 1}, "none")):
        for deterministic in (True, False):
            run = {"budget": budget, "deterministic": deterministic}
            assert reason(hardware=gpu, run=run)[0] == mode


def test_auto_does_not_compile_ranks_on_gpus(monkeypatch):
    """What compiling brings to several GPUs was never measured."""
    gpu = on_a_gpu(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    mode, because = reason(hardware=gpu)
    assert mode == "none"
    assert "one NVIDIA GPU" in because


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"run": {"budget": {"steps": 10**9}, "deterministic": False}}, "deterministic"),
        ({"optimizer": {"kind": "deepspeed", "stage": 2, "device": "cpu"}}, "optimizer.kind=accelerate"),
        ({"model": {"kind": "decoder", "lora": {"rank": 2}}}, "adapters"),
    ],
)
def test_auto_does_not_compile_what_was_never_tried(sections, why):
    """Runs that promise no equal bits, other engines and adapters are left as they are."""
    mode, because = reason(**sections)
    assert mode == "none"
    assert why in because


def test_auto_does_not_compile_a_kind_of_model_that_was_never_tried(monkeypatch):
    """A model of another type is left as it is."""
    monkeypatch.setattr(LanguageModel, "model_type", "mamba")
    mode, because = reason()
    assert mode == "none"
    assert "models of" in because


def test_auto_compiles_nothing_on_a_machine_without_a_compiler(tmp_path, monkeypatch):
    """Where torch would find no C++ compiler, auto means none, with the reason."""
    monkeypatch.setenv("PATH", str(tmp_path))
    mode, because = reason()
    assert mode == "none"
    assert "needs a C++ compiler" in because


def test_what_was_decided_once_stays():
    """A run keeps to what auto meant when it began."""
    sections = {"optimizer": {"device": "cpu"}, "run": {"budget": {"steps": 10**9}}}
    assert compiled(keep_choice=lambda *_: "none", **sections) is None


def test_a_machine_that_cannot_compile_goes_on_without(tmp_path, monkeypatch):
    """A run that was compiled elsewhere goes on where there is no compiler, and says that its bits may differ."""
    monkeypatch.setenv("PATH", str(tmp_path))
    said = []
    decide = lambda name, value, _: "default" if name == "model.compile" else value  # noqa: E731
    assert compiled(keep_choice=decide, report=said.append, optimizer={"device": "cpu"}) is None
    assert "not bit for bit" in said[0]
    assert "needs a C++ compiler" in said[0]


def test_parameters_gathered_within_a_layer_are_refused(tmp_path):
    """DeepSpeed's stage 3 is refused beside model.compile, set by the run or by DeepSpeed's file."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    for optimizer in ({"stage": 3}, {"config": str(file)}):
        with pytest.raises(ConfigurationError, match="stage 3"):
            compiled(model={"compile": "default"}, optimizer={"kind": "deepspeed", **optimizer})


def test_a_run_may_be_resumed_with_another_mode(tmp_path):
    """Compiling does not make it another run: a resume may change it, and run.json tells that it did."""
    for mode in ("none", "default"):
        with closing(RunFolder(tmp_path)) as folder:
            folder.begin({"model": {"kind": "decoder", "compile": mode}})
            folder.write()
    assert [entry["changed"] for entry in folder.record["history"]] == [{"model.compile": ("none", "default")}]
