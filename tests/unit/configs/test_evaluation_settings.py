import pytest

from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError

MIXTURE = ["data.kind=mixture", "data.sources={news: {kind: files, path: a.jsonl}, law: {kind: files, path: b.jsonl}}"]


def loaded(*settings):
    return load_settings([], list(settings), {}).settings.evaluation


def test_a_single_name_or_text_is_a_list_of_one():
    """Prompts and suites may be given without brackets, and a suite that is named twice counts once."""
    evaluation = loaded("evaluation.prompts=once upon", "evaluation.suites=[arc_easy, piqa, arc_easy]")
    assert evaluation.prompts == ("once upon",)
    assert evaluation.suites == ("arc_easy", "piqa")
    assert loaded("evaluation.suites=piqa").suites == ("piqa",)


def test_a_set_has_the_options_of_files():
    """A set takes one path or several, and the field and filter that files of data take."""
    evaluation = loaded("evaluation.sets={a: {path: x.jsonl, text_field: body}, b: {path: [y, z], filter: {lang: en}}}")
    assert evaluation.sets["a"].path == ("x.jsonl",)
    assert evaluation.sets["a"].text_field == "body"
    assert evaluation.sets["b"].path == ("y", "z")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ([*MIXTURE, "evaluation.sets={law: {path: x.jsonl}}"], "the set 'law', but a source of data.sources has this"),
        (["evaluation.sets={' a': {path: x.jsonl}}"], "' a'"),
        (["evaluation.sets={a: {}}"], "path"),
        (["evaluation.sets={a: {path: x, weight: 2}}"], "weight"),
        (["evaluation.suites=[../own.yaml]"], "no name of a task"),
        (["evaluation.suites=[piqa]", "state_store.kind=memory"], "state_store.kind=disk"),
        (["evaluation.sampling.temperature=-1"], "temperature"),
        (["evaluation.harness.timeout_seconds=0"], "timeout_seconds"),
    ],
)
def test_mistakes_are_refused(settings, told):
    """A mistake is named before anything is read."""
    with pytest.raises(ConfigurationError) as refusal:
        loaded(*settings)
    assert told in str(refusal.value)


def test_names_beside_those_of_sources_are_accepted():
    """A set may stand beside the sources of a mixture under a name of its own."""
    assert list(loaded(*MIXTURE, "evaluation.sets={test: {path: x.jsonl}}").sets) == ["test"]
