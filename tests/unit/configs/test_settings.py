"""The settings as such: defaults, shape, immutability and the files that ship with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

import holdfast.configs
from holdfast.configs.plain import leaves, to_plain
from holdfast.configs.secret_masking import is_secret
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_catalog import describe_settings, settings_by_name
from holdfast.configs.settings_layers import load_settings

FOLDER = Path(holdfast.configs.__file__).resolve().parent


def settings(*overrides):
    return load_settings([], overrides, {}).settings


def sections(model):
    for name in type(model).model_fields:
        value = getattr(model, name)
        for section in value if isinstance(value, tuple) else (value,):
            if isinstance(section, BaseModel):
                yield section
                yield from sections(section)


def test_the_quickstart_file_says_all_the_defaults():
    """Loading configs/quickstart.yaml equals giving nothing, and the file names every setting there is by default."""
    resolved = load_settings([FOLDER / "quickstart.yaml"], [], {})
    assert resolved.settings == TrainSettings()
    assert [name for name, origin in resolved.origins.items() if origin == "default"] == []


def test_the_example_for_own_text_validates():
    """configs/own_text.yaml is valid and asks for files, an existing tokenizer and existing weights."""
    loaded = load_settings([FOLDER / "own_text.yaml"], [], {}).settings
    assert (loaded.data.kind, loaded.tokenizer.kind, loaded.model.loads_weights) == ("files", "huggingface", True)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_a_ready_configuration_brings_no_tokenizer_of_another_model(name):
    """With a model of one's own in place of the file's, the tokenizer is that of this model."""
    if not load_settings([FOLDER / name], [], {}).settings.model.loads_weights:
        return
    loaded = load_settings([FOLDER / name], ["model.path=my/model"], {}).settings
    assert (loaded.tokenizer.kind, loaded.tokenizer.path) == ("huggingface", "my/model")


def test_every_section_is_frozen():
    """No field of any section can be assigned, so that nobody changes a run's settings under its feet."""
    whole = TrainSettings()
    for section in [whole, *sections(whole)]:
        name = next(iter(type(section).model_fields))
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, name, getattr(section, name))


def test_defaults_are_not_shared_between_settings():
    """Two settings never share the mutable config of the default model."""
    first, second = TrainSettings(), TrainSettings()
    first.model.config["hidden_size"] = 1
    assert second.model.config["hidden_size"] == TrainSettings().model.config["hidden_size"] == 192


def test_the_environment_of_a_host_does_not_leak_in(monkeypatch):
    """Building the settings directly reads nothing but the arguments."""
    monkeypatch.setenv("HOLDFAST_RUN__NAME", "leaked")
    monkeypatch.setenv("RUN", '{"name": "leaked"}')
    assert TrainSettings().run.name == "default"


def test_every_setting_is_described():
    """Each setting has a description of one sentence, and the listing names them all, with their defaults."""
    for name, fields in settings_by_name().items():
        for field in fields.values():
            assert field.description, name
            assert field.description.endswith("."), name
    listing = describe_settings()
    assert {line.split()[0].rstrip(":") for line in listing.splitlines()} == set(settings_by_name())
    assert "optimizer.learning_rate = 0.003: " in listing
    assert "run.budget.steps = 350: " in listing


def test_no_setting_of_ours_is_taken_for_a_secret():
    """The names of built-in settings, such as tokenizer and max_tokens, are not masked."""
    names = {part for name in settings_by_name() for part in name.split(".")}
    names |= {key for path, _ in leaves(to_plain(TrainSettings())) for key in path}
    assert [name for name in sorted(names) if is_secret(name)] == []


def test_importing_the_settings_imports_no_framework():
    """`--help` must answer at once: neither torch nor transformers is loaded by the configuration."""
    modules = "holdfast.configs.settings_layers, holdfast.configs.rendering"
    program = f"import sys, {modules}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=FOLDER.parent
    )
    assert done.stdout.strip() == "[]"


def test_the_default_budget_does_not_linger():
    """Giving one limit of the budget removes the default of the other; giving none leaves that of the quickstart."""
    assert settings().run.budget.steps == 150
    only_tokens = settings("run.budget.tokens=1e6").run.budget
    assert (only_tokens.steps, only_tokens.tokens) == (None, 1_000_000)
    both = settings("run.budget.tokens=10", "run.budget.steps=5").run.budget
    assert (both.steps, both.tokens) == (5, 10)


def test_a_path_takes_the_place_of_the_default_model():
    """model.path alone is no clash with the default config, and loads weights unless told otherwise."""
    model = settings("model.path=org/model").model
    assert (model.path, model.config, model.loads_weights) == ("org/model", None, True)
    assert not settings("model.path=org/model", "model.pretrained=false").model.loads_weights
    assert not settings().model.loads_weights


def test_fields_of_a_llama_change_the_default_one():
    """A config without model_type, or with the default one, changes fields of the small Llama and keeps the others."""
    for overrides in (["model.config.num_hidden_layers=2"], ["model.config={model_type: llama, num_hidden_layers: 2}"]):
        config = settings(*overrides).model.config
        assert config["num_hidden_layers"] == 2
        assert config["hidden_size"] == 192


def test_another_type_of_model_starts_empty():
    """A config of another model_type inherits no field of the default Llama."""
    assert settings("model.config={model_type: gpt2, n_embd: 64}").model.config == {"model_type": "gpt2", "n_embd": 64}


def test_one_path_is_a_list_of_one():
    """data.path may be one text or a list; it is always a tuple to whoever reads it."""
    assert settings("data.kind=files", "data.path=*.txt").data.path == ("*.txt",)
    assert settings("data.kind=files", "data.path=[a, s3://b/*.jsonl.gz]").data.path == ("a", "s3://b/*.jsonl.gz")


@pytest.mark.parametrize(
    ("section", "common"),
    [
        ("data", "sequence_length=64"),
        ("tokenizer", None),
        ("model", None),
        ("optimizer", "schedule.warmup_steps=3"),
        ("state_store", "keep=9"),
        ("event_bus", None),
        ("distributed", None),
    ],
)
def test_every_port_takes_an_outside_adapter(section, common):
    """A kind that is not built in is accepted with options of its own beside the section's common fields."""
    overrides = [f"{section}.kind=elsewhere", f"{section}.options={{host: h, ports: [1, 2]}}"]
    chosen = getattr(settings(*overrides, *([f"{section}.{common}"] if common else [])), section)
    assert chosen.kind == "elsewhere"
    assert chosen.options == {"host": "h", "ports": [1, 2]}
    if common:
        name, value = common.split("=")
        found = chosen
        for part in name.split("."):
            found = getattr(found, part)
        assert found == int(value)


def test_monitors_are_named_or_written_out():
    """A monitor is a kind alone or a section; one from outside has options; none at all is fine."""
    chosen = settings("monitors=[console, {kind: tensorboard}, {kind: beeper, options: {number: 5}}]").monitors
    assert [monitor.kind for monitor in chosen] == ["console", "tensorboard", "beeper"]
    assert chosen[2].options == {"number": 5}
    assert settings("monitors=[]").monitors == ()


def test_folders_follow_name_and_environment(monkeypatch, tmp_path):
    """The run's folder is runs/<name> unless set, and the cache follows XDG_CACHE_HOME if that is absolute."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert settings("run.name=a.b-c_1").run.directory == Path("runs/a.b-c_1")
    assert settings("run.dir=~/here").run.directory == tmp_path / "here"
    assert settings().run.cache_directory == tmp_path / ".cache" / "holdfast"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert settings().run.cache_directory == tmp_path / "x" / "holdfast"
    assert settings("run.cache_dir=mine").run.cache_directory == Path("mine")


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ({"optimizer": {"kind": "deepspeed"}}, "optimizer.kind=deepspeed"),
        ({"optimizer": {"precision": "fp8"}}, "optimizer.precision=fp8"),
        ({"model": {"path": "base", "lora": {}}}, "model.lora"),
        ({"model": {"compile": "default"}}, "model.compile=default"),
        ({"data": {"kind": "files", "path": "a", "task": "preference"}, "model": {"path": "base"}}, "mesh.context"),
    ],
)
def test_a_mesh_is_refused_where_it_was_not_tried(others, what):
    """The sentence names the setting that does not go with a mesh; without the mesh the settings are valid."""
    TrainSettings(**others)
    with pytest.raises(ValueError, match=r"has (a )?mesh") as refused:
        TrainSettings(**others, distributed={"kind": "auto", "mesh": {"context": 2}})
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("others", "axes", "what"),
    [
        ({"optimizer": {"kind": "deepspeed"}}, {}, "optimizer.kind=deepspeed"),
        ({"optimizer": {"precision": "fp8"}}, {}, "optimizer.precision=fp8"),
        ({"model": {"path": "base", "lora": {}}}, {}, "model.lora"),
        ({"model": {"kind": "decoder", "compile": "default"}}, {}, "model.compile=default"),
        ({"model": {"kind": "decoder"}}, {"tensor": 2}, "another axis"),
        ({"model": {"kind": "decoder"}}, {"context": 2}, "another axis"),
        ({"model": {"kind": "decoder"}}, {"replicate": 2}, "another axis"),
        ({"model": {"kind": "huggingface"}}, {}, "model.kind=huggingface"),
        (
            {"model": {"kind": "decoder"}, "data": {"kind": "files", "path": "texts", "task": "preference"}},
            {},
            "data.task=preference",
        ),
        ({"model": {"kind": "decoder"}, "optimizer": {"sharding": "fsdp2"}}, {}, "optimizer.sharding=fsdp2"),
        ({"model": {"kind": "decoder"}, "optimizer": {"offload": True}}, {}, "optimizer.offload"),
    ],
)
def test_a_pipeline_is_refused_where_it_does_not_work(others, axes, what):
    """The sentence names the setting that does not go with a pipeline."""
    with pytest.raises(ValueError, match=r"has (a )?mesh") as refused:
        TrainSettings(**others, distributed={"kind": "auto", "mesh": {"pipeline": 2, **axes}})
    assert what in str(refused.value)
