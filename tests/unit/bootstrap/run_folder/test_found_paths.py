"""Relative paths of a run are found in its project, from any folder."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.operations.base_of_adapters import (
    naming_base,
    refuse_useless_base,
    with_base,
)
from holdfast.bootstrap.run_folder.found_paths import as_found, moved_elsewhere
from holdfast.configs.error_messages import refuse
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from tests.support.written_runs import write_run

OF_ADAPTERS = ("model.path=base", "model.lora.rank=4", "model.trust_remote_code=base")


def settings_of(*words):
    return dump_settings(
        load_settings([], ["run.name=one", "data.kind=files", "data.path=texts/*.txt", *words], {}).settings
    )


@pytest.fixture
def project(tmp_path):
    """Return a folder with data, a model, a template, a key and a cache."""
    for folder in ("project/texts", "project/base", "project/cache", "project/archive", "project/tasks", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("texts/a.txt", "template.jinja", "key", "set.jsonl"):
        (tmp_path / "project" / file).write_text("x")
    return tmp_path / "project"


@pytest.mark.parametrize("place", ["runs/one", "runs/one/averages/steps-1-2", "runs/copy", "elsewhere"])
def test_each_path_is_found_from_elsewhere(project, place, monkeypatch):
    """Paths of models, data, sets, caches, templates and keys lead to the project of the run, or to where it began."""
    settings = settings_of(
        *OF_ADAPTERS,
        "run.cache_dir=cache",
        "data.task=chat",
        "data.chat.template=template.jinja",
        "evaluation.sets.mine={path: set.jsonl}",
        "state_store.encryption.key_from=file:key",
        "state_store.archive.url=./archive",
        "evaluation.harness.tasks=tasks",
    )
    monkeypatch.chdir(project.parent / "elsewhere")
    record = {"directory": str(project)} if place == "elsewhere" else {}
    found = as_found(settings, record, project / place)
    assert found["model"]["path"] == found["model"]["trust_remote_code"] == str(project / "base")
    assert found["data"]["path"] == [str(project / "texts/*.txt")]
    assert found["data"]["chat"]["template"] == str(project / "template.jinja")
    assert found["evaluation"]["sets"]["mine"]["path"] == [str(project / "set.jsonl")]
    assert found["evaluation"]["harness"]["tasks"] == str(project / "tasks")
    assert found["run"]["cache_dir"] == str(project / "cache")
    assert found["state_store"]["archive"]["url"] == str(project / "archive")
    assert found["state_store"]["encryption"]["key_from"] == f"file:{project / 'key'}"
    assert settings["model"]["path"] == "base"  # what was given is as it was


def test_what_is_here_or_nowhere_stays_as_it_is(project, monkeypatch):
    """Inside the project nothing changes, and neither do absolute paths, URLs and names on the hub."""
    monkeypatch.chdir(project)
    for words in (OF_ADAPTERS, ("model.path=org/model",), ("model.path=/abs/base",)):
        settings = settings_of(*words)
        assert as_found(settings, {"directory": "/"}, project / "runs/one") == settings
    monkeypatch.chdir(project.parent)
    remote = settings_of("data.path=s3://bucket/texts", "model.path=org/model")
    assert as_found(remote, {}, project / "runs/one") == remote


def test_the_project_of_a_moved_run_comes_before_the_folder_of_its_beginning(project, tmp_path, monkeypatch):
    """A project that was copied leads to its own files, and not to those of the original."""
    began = tmp_path / "began"
    (began / "base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found = as_found(settings_of(*OF_ADAPTERS), {"directory": str(began)}, project / "runs/one")
    assert found["model"]["path"] == str(project / "base")


@pytest.mark.parametrize(
    ("begun", "now"), [("base", "/base"), ("/base", "base"), ("./base", "base"), ("texts/../base", "/base")]
)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_place_that_is_written_another_way_is_the_same(project, monkeypatch, begun, now, is_there):
    """A base that is named by its whole path, or by the end of it, is the same; one that is elsewhere is another."""
    whole = [name.replace("/base", f"{project}/base") if name[0] == "/" else name for name in (begun, now)]
    before, after = (settings_of(f"model.path={name}") for name in whole)
    monkeypatch.chdir(project if is_there else project.parent / "elsewhere")
    (project.parent / "elsewhere" / "base").mkdir()
    other = moved_elsewhere(["model.path"], {"settings": before}, project / "runs/one", after)
    assert (other == []) is (is_there or now[0] == "/")


def test_a_base_replaces_that_of_adapters_alone(project):
    """A given base takes the place of the recorded one, its revision and its trust; other runs keep theirs."""
    settings = settings_of("model.path=org/base", "model.revision=abc", "model.lora.rank=4")
    found = with_base(settings, str(project / "base"))
    assert (found["model"]["path"], found["model"]["revision"]) == (str(project / "base"), None)
    plain = settings_of("model.path=org/base")
    assert with_base(plain, "other") == plain
    assert with_base(settings, None) == settings
    trusting = settings_of("model.path=org/base", "model.trust_remote_code=org/base", "model.lora.rank=4")
    assert with_base(trusting, "org/other")["model"]["trust_remote_code"] == "org/other"  # to be trusted anew


def test_a_base_that_is_missing_or_useless_is_refused(project, tmp_path):
    """A folder that is not there is named with the option, and a base without adapters is told to have no effect."""
    missing = settings_of("model.path=./nowhere", "model.lora.rank=4")
    needed = r"need the model that .* \./nowhere, .* --base PATH"
    with pytest.raises(ConfigurationError, match=needed), naming_base(missing, tmp_path):
        pytest.fail("it was loaded")
    with naming_base(settings_of("model.path=./nowhere"), tmp_path):
        pass
    with pytest.raises(ConfigurationError, match=r"--base \./nowhere is no folder"):
        with_base(missing, "./nowhere")
    write_run(tmp_path / "of-base")
    with pytest.raises(ConfigurationError, match=r"--base .*/of-base is the folder of a run"):
        with_base(missing, str(tmp_path / "of-base"))
    plain = write_run(tmp_path / "plain", settings=["model.path=org/base"])
    tuned = write_run(tmp_path / "tuned", settings=["model.path=org/base", "model.lora.rank=4"])
    with pytest.raises(ConfigurationError, match=r"--base org/base has no effect: .*plain trained no adapters"):
        refuse_useless_base([plain], "org/base")
    refuse_useless_base([plain, tuned], "org/base")
    refuse_useless_base([tmp_path / "nowhere"], None)


@pytest.mark.parametrize(("words", "is_named"), [(("model.lora.rank=4",), True), ((), False)])
def test_a_base_that_the_hub_lacks_is_to_be_named(words, is_named, tmp_path):
    """The error of a model that cannot be loaded says how to name the base of adapters, and is as it was otherwise."""
    with (
        pytest.raises(ConfigurationError) as refused,
        naming_base(settings_of("model.path=org/base", *words), tmp_path),
    ):
        refuse("the hub has no org/base")
    assert str(refused.value).startswith("the hub has no org/base")
    assert ("--base PATH" in str(refused.value)) is is_named
