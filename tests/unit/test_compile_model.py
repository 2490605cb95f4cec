import json
from contextlib import ExitStack, closing

import pytest

from bootstrap.assemble import assemble
from bootstrap.compiling import compile_model
from bootstrap.run_folder import RunFolder
from configs.settings import TrainSettings
from domain.errors import ConfigurationError


def compiled(folder, **sections):
    container = assemble(
        TrainSettings(data={"kind": "python_library"}, **sections),
        folder,
        {},
        say=lambda _: None,
        decide=lambda _, value, __: value,
    )
    with ExitStack() as stack:
        return compile_model(container, stack, say=lambda _: None)


def test_a_run_that_is_not_told_to_compiles_nothing(tmp_path):
    """Without model.compile nothing is compiled, and nothing is imported for it."""
    assert compiled(tmp_path) is None


def test_parameters_gathered_within_a_layer_are_refused(tmp_path):
    """DeepSpeed's stage 3 is refused beside model.compile, set by the run or by DeepSpeed's file."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    for optimizer in ({"stage": 3}, {"config": str(file)}):
        with pytest.raises(ConfigurationError, match="stage 3"):
            compiled(tmp_path, model={"compile": "default"}, optimizer={"kind": "deepspeed", **optimizer})


def test_a_run_may_be_resumed_with_another_mode(tmp_path):
    """Compiling does not make it another run: a resume may change it, and run.json tells that it did."""
    for mode in ("none", "default"):
        with closing(RunFolder(tmp_path)) as folder:
            folder.begin({"model": {"kind": "decoder", "compile": mode}})
            folder.write()
    assert [entry["changed"] for entry in folder.record["history"]] == [{"model.compile": ("none", "default")}]
