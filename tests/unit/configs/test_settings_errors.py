"""Everything that can be wrong with the settings is said in one sentence that names key, layer and remedy."""

from __future__ import annotations

import pytest

from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import size_in_bytes


def complaint(*overrides, files=(), environ=None):
    with pytest.raises(ConfigurationError) as caught:
        load_settings(files, overrides, environ or {})
    message = str(caught.value)
    assert message.isprintable()
    assert "pydantic" not in message
    assert caught.value.__suppress_context__
    return message


def written(folder, text):
    path = folder / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("override", "key", "remedy"),
    [
        ("optimizer.lerning_rate=1", "optimizer.lerning_rate", "did you mean optimizer.learning_rate?"),
        ("learning_rate=1", "learning_rate", "did you mean optimizer.learning_rate?"),
        ("lr=1", "lr", "did you mean optimizer.learning_rate?"),
        ("optimizer.lr=1", "optimizer.lr", "did you mean optimizer.learning_rate?"),
        ("model.lora.r=8", "model.lora.r", "did you mean model.lora.rank?"),
        ("data.seq_len=8", "data.seq_len", "did you mean data.sequence_length?"),
        ("optimizer.precision=bfloat16", "optimizer.precision", "did you mean optimizer.precision=bf16?"),
        ("optimizer.precision=16", "optimizer.precision", "did you mean optimizer.precision=fp16?"),
        ("optimizer.algorithm=AdamW", "optimizer.algorithm", "did you mean optimizer.algorithm=adamw?"),
        ("data={kind: files, path: x, compression: gzip}", "data.compression", "did you mean data.compression=gz?"),
        (
            "model={kind: decoder, activation: swiglu}",
            "model.activation",
            "did you mean model.activation=silu model.gated=true?",
        ),
        ("model.hidden_size=64", "model.hidden_size", "but model.kind is huggingface: set model.config.hidden_size,"),
        ("model.gated=true", "model.gated", "belongs to model.kind=decoder, but model.kind is huggingface: set both"),
        ("optimiser.clip=1", "optimiser", "did you mean optimizer?"),
        ("run.budget.step=1", "run.budget.step", "did you mean run.budget.steps?"),
        ("optimizer.schedule.qqqq=1", "optimizer.schedule.qqqq", "optimizer.schedule has decay_shape, decay_steps,"),
        ("qqqq=1", "qqqq", "there are data, distributed, evaluation, event_bus, handlers, ledger, model, monitors"),
        ("_env_file=x", "_env_file", "there are data,"),
        ("monitors=[{kind: jsonl, qqqq: 1}]", "monitors[0].qqqq", "monitors[0] has kind"),
        ("optimizer.learning_rate=fast", "optimizer.learning_rate", "must be a number, not fast"),
        ("optimizer.learning_rate=true", "optimizer.learning_rate", "must be a number, not true"),
        ("optimizer.learning_rate=0", "optimizer.learning_rate", "must be above 0, not 0"),
        ("optimizer.learning_rate=.inf", "optimizer.learning_rate", "must be a finite number"),
        ("optimizer.learning_rate.x=1", "optimizer.learning_rate", "must be a number"),
        ("optimizer.betas=[0.9]", "optimizer.betas", "has too few values"),
        ("optimizer.betas=[0.9, 1]", "optimizer.betas[1]", "must be below 1, not 1"),
        ("optimizer={batch_size: 8, batch_tokens: 4096}", "optimizer.batch_tokens", "set one of the two to null"),
        ("optimizer.batch_size=null", "optimizer.batch_tokens", "set one of the two"),
        ("optimizer.precision=half", "optimizer.precision", "must be one of auto, fp32, bf16, fp16 or fp8, not half"),
        ("optimizer={kind: deepspeed, precision: fp16}", "optimizer.precision", "set optimizer.precision=bf16"),
        ("optimizer={kind: deepspeed, precision: fp8}", "optimizer.precision", "set optimizer.precision=bf16"),
        ("optimizer.micro_batch=17", "optimizer.micro_batch", "at most optimizer.batch_size, which is 8"),
        ("optimizer.schedule.floor=1.5", "optimizer.schedule.floor", "must be at most 1, not 1.5"),
        ("run.budget.steps=1.5", "run.budget.steps", "must be a whole number, not 1.5"),
        ("run.budget.steps=true", "run.budget.steps", "must be a whole number, not true"),
        ("run.budget.steps=null", "run.budget", "needs steps, tokens or minutes, or data.epochs a number"),
        ("data={mode: stream, epochs: 2}", "data.epochs", "is 2, which alone is no length"),
        ("run.budget=5", "run.budget", "must be a section"),
        ("run.seed=4294967296", "run.seed", "must be at most 4294967295, not 4294967296"),
        ("run.deterministic=1", "run.deterministic", "must be true or false, not 1"),
        ("run.name=../x", "run.name", "letters, digits and . _ - only"),
        ("run.name=.hidden", "run.name", "must not begin with . or -"),
        ("run.name=..", "run.name", "letters, digits and . _ - only"),
        ("run.dir=a\0b", "run.dir", "must be a path"),
        ("data=files", "data", "must be a section"),
        ("data.kind=fils", "data.kind", "did you mean files?"),
        ("data.sequence_length=7", "data.sequence_length", "must be at least 8, or auto, not 7"),
        ("data.holdout=1", "data.holdout", "must be below 1, not 1"),
        ("data.fold=1", "data.fold", "data.folds is null: set the number of folds"),
        ("data={folds: 3, fold: 3}", "data.fold", "must be below data.folds, which is 3, not 3"),
        ("data.packing.stride=9", "data.packing.stride", "belongs to data.packing.kind=sliding, but"),
        ("data.packing={kind: best_fit, stride: 9}", "data.packing.stride", "but data.packing.kind is best_fit"),
        ("data.packing={kind: sliding, overflow: drop}", "data.packing.overflow", "leave data.packing.overflow out"),
        ("data={kind: mixture, sources: {a: {kind: python_library, weight: 0}}}", "data ", "set that of a above 0"),
        ("data={kind: tokens, path: x, mode: stream}", "data.mode", "leave data.mode out"),
        ("data.cache.evictoin=lru", "data.cache.evictoin", "did you mean data.cache.eviction?"),
        ("data.drift={refrence: march}", "data.drift.refrence", "did you mean data.drift.reference?"),
        ("data={kind: python_library, path: x}", "data.path", "belongs to data.kind=files, but data.kind is python_"),
        ("data.path=org/name", "data.path", "set data.kind=huggingface if it is the name of a dataset on the hub"),
        ("data={kind: 5}", "data.kind", "must be text"),
        ("tokenizer={kind: train, path: x}", "tokenizer.path", "belongs to tokenizer.kind=huggingface"),
        ("tokenizer.vocabulary_size=256", "tokenizer.vocabulary_size", "must be at least 257"),
        ("state_store.keep=0", "state_store.keep", "must be at least 1, not 0"),
        ("monitors=console", "monitors", "must be a list, not console"),
        ("monitors=[consol]", "monitors[0].kind", "did you mean console?"),
        ("monitors=[jsonl, jsonl]", "monitors", "names one monitor twice"),
        ("model.pretrained=true", "model.pretrained", "needs model.path"),
        ("model.revision=abc", "model.revision", "needs model.path"),
        ("model.config=null", "model", "needs path or config"),
        ("model.config=llama", "model.config", "must be a mapping"),
        ("model.config={model_type: 5}", "model", "needs config.model_type"),
        ("sample.prompt=\ud800", "sample.prompt", "must be valid Unicode"),
        ("sample.prompt='x", "sample.prompt", "begins like quoted text"),
        ("sample.top_k=&a 5", "sample.top_k", "must be a whole number"),
        ("model.config=[*a]", "model.config", "aliases"),
        ("run.seed", "run.seed", "write run.seed=VALUE"),
        ("e1", "e1", "write section.key=value"),
        ("=5", "an empty name", "write section.key=value"),
        ("run..seed=5", "run..seed", "write section.key=value"),
        ("a." * 5000 + "a=5", "a.a.a", "write section.key=value"),
    ],
)
def test_a_wrong_override_is_named_with_its_remedy(override, key, remedy):
    """A problem on the command line names the key as it was written, the command line, and what would be right."""
    message = complaint(override)
    assert message.startswith(key)
    assert "(command line)" in message
    assert remedy in message


def test_the_name_of_an_installed_adapter_may_be_like_a_built_in_kind(tmp_path, monkeypatch):
    """A kind that an installed package offers is not taken for a misspelling of a built-in kind."""
    assert "did you mean sqlite?" in complaint("monitors=[mysqlite]")
    package = tmp_path / "house-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: house\nVersion: 1.0\n", encoding="utf-8")
    (package / "entry_points.txt").write_text("[holdfast.monitor]\nmysqlite = house:Monitor\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert [monitor.kind for monitor in load_settings((), ("monitors=[mysqlite]",), {}).settings.monitors] == [
        "mysqlite"
    ]


def test_a_missing_field_names_what_needs_it():
    """A kind with a required field says which field, which kind, and where the kind was chosen."""
    expected = "tokenizer.path is missing: tokenizer.kind=huggingface (command line) needs it"
    assert complaint("tokenizer.kind=huggingface") == expected


def test_fields_of_an_unknown_kind_belong_under_options():
    """A kind that is not built in refuses other fields, lists the built-in kinds and points to options."""
    message = complaint("data.kind=parquet", "data.path=x")
    for part in ("data.path (command line)", "data.kind=parquet", "python_library, files", "data.options"):
        assert part in message


def test_path_and_config_together_are_refused():
    """Two sources of a model in one layer, or a config on top of a path, are an error, not a guess."""
    assert "keep one" in complaint("model.path=x", "model.config.model_type=gpt2")
    message = complaint("model.config.dropout=0.1", environ={"HOLDFAST_MODEL__PATH": "x"})
    assert message.startswith("model (command line) has both path and config")


def test_all_wrong_settings_are_told_at_once(tmp_path):
    """Each wrong setting of files, environment and command line has a line of its own, and none is only counted."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(
            [written(tmp_path, "data: {sequence_length: 7, holdout: 2}")],
            ["optimizer.x=1", "a=1", "run.seed=-1", "run.name"],
            {"HOLDFAST_RUN__BUDGET__STEPS": "many"},
        )
    first, *others = str(caught.value).splitlines()
    assert first == "7 settings are wrong:"
    names = ["run.name", "a", "run.seed", "run.budget.steps", "data.sequence_length", "data.holdout", "optimizer.x"]
    assert sorted(line.split()[0] for line in others) == sorted(names)


def test_a_value_that_may_be_of_several_types_is_one_problem():
    """A number or auto is one sentence that says both."""
    expected = "optimizer.micro_batch (command line) must be a whole number, or auto, not many"
    assert complaint("optimizer.micro_batch=many") == expected


def test_a_part_of_a_mixture_is_named_as_it_was_written():
    """The weight of a source is named without the kind of the source in between."""
    message = complaint("data={kind: mixture, sources: {a: {kind: files, path: x}}}", "data.sources.a.weight=-0.7")
    assert message == "data.sources.a.weight (command line) must be a number from 0 on"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1GiB", 1 << 30), ("20GB", 20 * 10**9), ("20M", 20_000_000), ("2e7", 20_000_000), ("1_000", 1000)],
)
@pytest.mark.parametrize(
    "name",
    [
        "data.stream_buffer_bytes",
        "data.cache.budget",
        "run.budget.tokens",
        "data.shuffle_tokens",
        "evaluation.max_tokens",
    ],
)
def test_a_size_means_the_same_in_every_setting(name, text, value, tmp_path):
    """Units, exponents and underscores are read alike for bytes and for counts, on the command line and in files."""
    keys = name.split(".")
    file = written(tmp_path, "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(keys))[:-1] + f" {text}\n")
    for files, overrides in (([], [f"{name}={text}"]), ([file], [])):
        found = load_settings(files, overrides, {}).settings
        for key in keys:
            found = getattr(found, key)
        assert found == value


@pytest.mark.parametrize("text", ["20GiB", "2e10", "20_000_000_000", "20000000000", "20gb"])
def test_a_budget_of_the_disk_takes_every_form_of_a_size(text):
    """What is a size elsewhere is one for the disk, too."""
    settings = load_settings([], [f"state_store.disk_budget={text}", "state_store.archive.url=a"], {}).settings
    assert size_in_bytes(settings.state_store.disk_budget) == (20 << 30 if "i" in text else 20 * 10**9)


def test_other_variables_of_the_same_prefix_are_no_settings():
    """A variable such as the documented HOLDFAST_KEY, which holds a key, sets nothing and is no error."""
    environ = {"HOLDFAST_KEY": "c2VjcmV0", "HOLDFAST_TEST_ENGINE": "x"}
    assert load_settings([], [], environ).settings == load_settings([], [], {}).settings
    assert "HOLDFAST_OPTIMIZR__CLIP" in complaint(environ={"HOLDFAST_OPTIMIZR__CLIP": "1"})
    assert "HOLDFAST_OPTIMIZR" in complaint(environ={"HOLDFAST_OPTIMIZR": "{clip: 1}"})


def test_files_are_named_by_text_too(tmp_path):
    """A caller may name files by text as well as by paths."""
    file = written(tmp_path, "run: {seed: 3}")
    assert load_settings([str(file)], [], {}).settings.run.seed == 3


@pytest.mark.parametrize("variable", ["HOLDFAST_OPTIMIZER__LERNING_RATE", "HOLDFAST_OPTIMIZER_LEARNING_RATE"])
def test_a_wrong_variable_is_answered_in_its_own_terms(variable):
    """A variable that names no setting is an error that names it and the nearest variable."""
    message = complaint(environ={variable: "1"})
    assert f"(environment {variable})" in message
    assert "did you mean HOLDFAST_OPTIMIZER__LEARNING_RATE?" in message


def test_the_value_of_a_variable_is_checked():
    """A value of the wrong type names the key and the variable."""
    message = complaint(environ={"HOLDFAST_RUN__SEED": "x"})
    assert message == "run.seed (environment HOLDFAST_RUN__SEED) must be a whole number, not x"


def test_a_wrong_value_in_a_file_names_the_file(tmp_path):
    """A problem that stands in a file names the file, also if other layers are right."""
    file = written(tmp_path, "run: {seed: -1}")
    message = complaint("run.name=x", files=[file])
    assert message == f"run.seed ({file}) must be at least 0, not -1"


def test_a_problem_of_a_whole_section_names_the_layer_that_caused_it(tmp_path):
    """Of the layers that set a part of a wrong section, the highest is named."""
    file = written(tmp_path, "run: {budget: {steps: 5, tokens: null}}")
    assert complaint("run.budget.steps=null", files=[file]).startswith("run.budget (command line) needs steps")


def test_settings_of_a_record_are_checked_as_well():
    """Settings read back name the record as the place of a problem."""
    with pytest.raises(ConfigurationError, match=r"run\.seed \(run\.json\) must be a whole number"):
        restore_settings({"run": {"seed": "x"}})
    with pytest.raises(ConfigurationError, match=r"old/run\.json: it must hold sections"):
        restore_settings([], "old/run.json")


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.fold=0"],
        ["data.folds=5", "data.fold=4"],
        ["data.packing.kind=sliding", "data.packing.stride=9"],
        ["data.packing.stride=null"],
        ["data.packing.kind=best_fit", "data.packing.overflow=drop"],
        ["data.packing.kind=sliding", "data.packing.overflow=split"],
        ["data.kind=tokens", "data.path=x", "data.mode=cache"],
    ],
)
def test_what_takes_effect_is_accepted(overrides):
    """A fold among folds, a stride of sliding windows, an overflow of others and tokens as a cache are no mistakes."""
    loaded = load_settings([], overrides, {})
    assert [loaded.origins[override.partition("=")[0]] for override in overrides] == ["command line"] * len(overrides)


@pytest.mark.parametrize("section", ["data.cache", "state_store"])
@pytest.mark.parametrize("key", ["QUJDREVGMDEyMzQ1Njc4OUFCQ0RFRg", "env:QUJDREVG+/MDEyMzQ1==", "env:", ":QUJDREVG"])
def test_a_key_in_place_of_its_place_is_refused_and_not_shown(section, key):
    """A key that somebody pasted as a setting ends the command before any file is written, and is not repeated."""
    message = complaint(f"{section}.encryption.key_from={key}")
    assert "must be env:NAME, file:PATH or KIND:PLACE" in message
    assert "QUJDREVG" not in message


@pytest.mark.parametrize("ledger", ["ledger=sqlite", "ledger={kind: postgres, dsn: env:DSN}", "ledger.kind=outside"])
def test_a_ledger_of_encrypted_data_is_refused(ledger):
    """A ledger stores hashes of texts in plain, so it does not go with encrypted tokens unless it stays in memory."""
    encrypted = "data.cache.encryption.key_from=env:KEY"
    message = complaint(encrypted, ledger)
    assert message.startswith("ledger (command line) has kind=")
    assert "hashes of documents unencrypted" in message
    assert load_settings([], [encrypted, "ledger=memory"], {}).settings.ledger.kind == "memory"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["data.holdout=0"], "data.holdout is 0, so there are no documents to evaluate on"),
        (["evaluation.every=0"], "evaluation.every is 0, so there are no evaluations during training"),
    ],
)
def test_early_stopping_needs_evaluations(overrides, reason):
    """Settings without evaluations are refused with one sentence; folds hold documents out too."""
    message = complaint("recovery.early_stopping.patience=3", *overrides)
    assert "recovery (command line) has early_stopping.patience=3, but " in message
    assert reason in message
    load_settings([], ["recovery.early_stopping.patience=3", "data.holdout=0", "data.folds=5"], {})
    load_settings([], overrides, {})


def test_a_name_with_dots_in_a_file_is_explained(tmp_path):
    """In a file sections are nested; the error says how, and does not suggest the name that was written."""
    (tmp_path / "own.yaml").write_text("run.budget.steps: 5\n")
    message = complaint(files=[tmp_path / "own.yaml"])
    assert "did you mean" not in message
    assert "write its sections below each other, as run: {budget: {steps: ...}}" in message


def test_a_metric_that_no_evaluation_has_is_refused():
    """Early stopping follows a metric of evaluations, not one of steps."""
    message = complaint("recovery.early_stopping.metric=grad_norm")
    assert "recovery.early_stopping.metric (command line) is 'grad_norm', by which evaluations are not" in message
    assert "must be eval_loss, eval_bits_per_byte or eval_reward_accuracy" in message
