"""Which layer wins, and what is said about where a value came from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from holdfast.configs.plain import leaves, to_plain
from holdfast.configs.rendering import dump_settings, render
from holdfast.configs.secret_masking import MASK, is_secret
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_layers import Resolved, load_settings, restore_settings

KEYS = {
    "run.seed": st.integers(0, 2**32 - 1),
    "optimizer.learning_rate": st.floats(1e-6, 1.0),
    "optimizer.schedule.warmup_steps": st.integers(0, 1000),
    "evaluation.at_start": st.booleans(),
    "sample.prompt": st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20),
    "model.config.hidden_size": st.integers(1, 999),
}


def at(settings, name):
    value = to_plain(settings)
    for key in name.split("."):
        value = value[key]
    return value


def nested(name, value):
    for key in reversed(name.split(".")):
        value = {key: value}
    return value


def variable(name):
    return "HOLDFAST_" + name.upper().replace(".", "__")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("layers")


def layered(folder, *texts):
    paths = [folder / f"{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


@hypothesis_settings(deadline=None)
@given(data=st.data())
def test_the_highest_layer_that_sets_a_key_wins(folder, data):
    """For any key and any layers that set it, the value is that of the highest one, and its origin says which."""
    name = data.draw(st.sampled_from(sorted(KEYS)))
    values = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys("abec", KEYS[name])))
    files = layered(folder, *(json.dumps(nested(name, values[layer])) if layer in values else "" for layer in "ab"))
    environ = {variable(name): json.dumps(values["e"])} if "e" in values else {}
    overrides = [f"{name}={json.dumps(values['c'])}"] if "c" in values else []
    origins = {"a": str(files[0]), "b": str(files[1]), "e": f"environment {variable(name)}", "c": "command line"}

    resolved = load_settings(files, overrides, environ)

    highest = next((layer for layer in "ceba" if layer in values), None)
    assert at(resolved.settings, name) == (values[highest] if highest else at(TrainSettings(), name))
    assert resolved.origins[name] == origins.get(highest, "default")
    assert {origin for key, origin in resolved.origins.items() if key != name} == {"default"}


def test_layers_that_set_different_keys_add_up(folder):
    """Files are merged deeply, so that each layer adds to the others key by key."""
    files = layered(
        folder, "optimizer: {batch_size: 8, schedule: {floor: 0.5}}", "optimizer: {schedule: {warmup_steps: 1}}"
    )
    optimizer = load_settings(files, ["optimizer.clip=2"], {"HOLDFAST_OPTIMIZER__WEIGHT_DECAY": "0"}).settings.optimizer
    assert (optimizer.batch_size, optimizer.schedule.floor, optimizer.schedule.warmup_steps) == (8, 0.5, 1)
    assert (optimizer.clip, optimizer.weight_decay) == (2.0, 0.0)


def test_origins_name_every_leaf():
    """Every leaf of the settings has an origin, lists as a whole."""
    resolved = load_settings([], ["monitors=[console]", "optimizer.betas=[0.5, 0.6]"], {})
    assert set(resolved.origins) == {".".join(path) for path, _ in leaves(to_plain(resolved.settings))}
    assert resolved.origins["monitors"] == resolved.origins["optimizer.betas"] == "command line"


def test_lists_are_replaced_as_a_whole(folder):
    """A higher layer's monitors take the place of the lower one's."""
    files = layered(folder, "monitors: [console, jsonl, tensorboard]")
    assert [monitor.kind for monitor in load_settings(files, ["monitors=[structlog]"], {}).settings.monitors] == [
        "structlog"
    ]


def test_another_kind_drops_what_only_the_former_kind_has(folder):
    """Switching data.kind in a higher layer drops the lower layer's path and format, and keeps the common fields."""
    files = layered(folder, "data: {kind: files, path: texts, format: txt, sequence_length: 64, holdout: 0}")
    data = load_settings(files, ["data.kind=python_library"], {}).settings.data
    assert (data.kind, data.sequence_length, data.holdout) == ("python_library", 64, 0)
    assert not hasattr(data, "path")


def test_options_belong_to_their_own_kind(folder):
    """The options of one outside adapter are not handed to another one, nor to a built-in kind."""
    files = layered(folder, "state_store: {kind: tape, keep: 7, options: {drive: 1}}")
    other = load_settings(files, ["state_store.kind=vault"], {}).settings.state_store
    assert (other.kind, other.keep, other.options) == ("vault", 7, {})
    assert load_settings(files, ["state_store.kind=disk"], {}).settings.state_store.keep == 7


def test_a_kind_and_its_fields_may_come_from_different_layers(folder):
    """A lower layer may give what a higher layer's kind needs; the same kind named again drops nothing."""
    files = layered(folder, "tokenizer: {path: folder}", "tokenizer: {kind: huggingface}")
    for overrides in ([], ["tokenizer.kind=huggingface"]):
        assert load_settings(files, overrides, {}).settings.tokenizer.path == "folder"


def test_another_path_drops_what_belonged_to_the_former_model(folder):
    """A model path in a higher layer replaces the lower one's config, path and revision, but not how it attends."""
    scratch = layered(folder, "model: {config: {model_type: gpt2}, attention: eager}")
    model = load_settings(scratch, ["model.path=org/b"], {}).settings.model
    assert (model.path, model.config, model.attention) == ("org/b", None, "eager")
    hub = layered(folder, "model: {path: org/a, revision: abc, pretrained: false}")
    model = load_settings(hub, ["model.path=org/b"], {}).settings.model
    assert (model.revision, model.pretrained) == (None, False)
    assert load_settings(hub, ["model.path=org/a"], {}).settings.model.revision == "abc"


def test_another_type_of_model_drops_the_former_fields(folder):
    """Fields of a model_type in a lower layer do not leak into another model_type of a higher layer."""
    files = layered(folder, "model: {config: {model_type: gpt2, n_embd: 64}}")
    config = load_settings(files, ["model.config.model_type=mamba"], {}).settings.model.config
    assert config == {"model_type": "mamba"}
    assert load_settings(files, ["model.config.n_head=2"], {}).settings.model.config["n_embd"] == 64


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("optimizer.learning_rate=1e-3", 0.001),
        ("optimizer.learning_rate=1", 1.0),
        ("run.budget.tokens=1e9", 10**9),
        ("run.budget.tokens=1_000_000", 10**6),
        ("run.name=007", "007"),
        ("run.name='7'", "7"),
        ("tokenizer.revision=1e5", "1e5"),
        ("tokenizer.revision=null", None),
        ("tokenizer.revision=", None),
        ("sample.prompt=def ", "def "),
        ("sample.prompt=", ""),
        ("sample.prompt=null", "null"),
        ('sample.prompt="a\\nb"', "a\nb"),
        ("sample.prompt=a=b: [c", "a=b: [c"),
        ("sample.prompt=*any &thing", "*any &thing"),
        ("run.deterministic=false", False),
        ("optimizer.betas=[0, 0.5]", [0.0, 0.5]),
        ("model.config.dropout=.inf", float("inf")),
        ("model.config.name='1'", "1"),
    ],
)
def test_values_on_the_command_line_mean_what_they_say(override, value):
    """Numbers, lists and quoted text are read as such; a setting that is text takes everything else as it stands."""
    path = ["tokenizer.kind=huggingface", "tokenizer.path=x"] if override.startswith("tokenizer") else []
    resolved = load_settings([], [*path, override], {})
    assert at(resolved.settings, override.split("=")[0]) == value


def test_the_environment_reads_values_as_the_command_line_does():
    """A variable's value may be a number, text or a whole section, which a deeper variable refines."""
    environ = {
        "HOLDFAST_MODEL": "{path: org/a, attention: eager}",
        "HOLDFAST_MODEL__PATH": "org/b",
        "HOLDFAST_RUN__NAME": "007",
        "HOLDFAST_RUN__BUDGET__STEPS": "5",
        "OTHER": "x",
    }
    settings = load_settings([], [], environ).settings
    assert (settings.model.path, settings.model.attention) == ("org/b", "eager")
    assert (settings.run.name, settings.run.budget.steps) == ("007", 5)


def test_the_last_override_of_a_key_counts():
    """On the command line the later of two values wins."""
    assert load_settings([], ["run.seed=1", "run.seed=2"], {}).settings.run.seed == 2


def is_no_secret(name):
    """Return whether a value of this ``name`` is rendered as it is."""
    return not is_secret(name)


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda text: MASK not in text)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words.filter(is_no_secret), inner, max_size=3),
    max_leaves=8,
)


@hypothesis_settings(deadline=None)
@given(
    options=st.dictionaries(st.sampled_from(["host", "yes", "1", "a b", "über", "x#y", "- z"]), plain_values),
    prompt=words,
    monitors=st.lists(st.sampled_from(["console", "beeper"]), unique=True),
)
def test_what_is_rendered_can_be_read_again(folder, options, prompt, monitors):
    """Any settings, rendered and passed to --config, are the same settings again; so are those from the dump."""
    sections = {"data": {"kind": "outside", "options": options}, "sample": {"prompt": prompt}, "monitors": monitors}
    settings = restore_settings(sections)
    origins = {".".join(path): "a\nstrange: place" for path, _ in leaves(to_plain(settings))}
    text = render(Resolved(settings, origins))
    assert load_settings(layered(folder, text), [], {}).settings == settings
    assert restore_settings(json.loads(json.dumps(dump_settings(settings)))) == settings


def test_a_rendered_line_says_where_its_value_came_from(folder):
    """Each leaf is one line that ends with its origin."""
    (file,) = layered(folder, "run: {seed: 5}")
    lines = render(load_settings([file], ["optimizer.clip=2"], {"HOLDFAST_RUN__NAME": "x"})).splitlines()
    assert f"  seed: 5  # {file}" in lines
    assert "  clip: 2.0  # command line" in lines
    assert "  name: x  # environment HOLDFAST_RUN__NAME" in lines
    assert "    steps: 150  # default" in lines
