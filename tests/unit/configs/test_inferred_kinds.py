"""A kind that nobody chose is inferred where only one can be meant, and said to be."""

import pytest

from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("override", "name", "kind"),
    [
        ("data.path=x", "data", "files"),
        ("data.path=texts/*.jsonl", "data", "files"),
        ("data.path=texts/books.jsonl", "data", "files"),
        ("data.path=s3://bucket/texts", "data", "files"),
        ("data.path=[a, b]", "data", "files"),
        ("data.path=ids.npy", "data", "tokens"),
        ("data={path: org/name, split: train}", "data", "huggingface"),
        ("data={path: ids, dtype: uint16}", "data", "tokens"),
        ("data.sources={a: {kind: python_library}}", "data", "mixture"),
        ("tokenizer.path=x", "tokenizer", "huggingface"),
        ("optimizer.stage=3", "optimizer", "deepspeed"),
    ],
)
def test_what_can_mean_one_kind_only_chooses_it(override, name, kind):
    """A field that one kind has chooses that kind, and the origin of the kind says so."""
    found = load_settings([], [override], {})
    assert getattr(found.settings, name).kind == kind
    assert found.origins[f"{name}.kind"].startswith(f"inferred from {name}.")
    assert found.origins[f"{name}.kind"].endswith("(command line)")


def test_a_saved_dataset_is_known_by_its_files(tmp_path):
    """A folder that the datasets library saved is read by it; any other folder holds files."""
    saved, texts = tmp_path / "saved", tmp_path / "texts"
    saved.mkdir()
    texts.mkdir()
    (saved / "state.json").write_text("{}")
    assert load_settings([], [f"data.path={saved}"], {}).settings.data.kind == "huggingface"
    assert load_settings([], [f"data.path={texts}"], {}).settings.data.kind == "files"


def test_a_home_of_nobody_is_a_path_like_any_other():
    """A path below the home of an unknown user is no crash: it is looked for, and missed, as data."""
    assert load_settings([], ["data.path=~nobody-of-that-name/x"], {}).settings.data.kind == "files"


def test_parts_of_a_mixture_need_no_kind(tmp_path):
    """The path of a source tells its kind as it does for data."""
    found = load_settings([], ["data.sources={a: {path: x, weight: 3}, b: {path: org/n, split: train}}"], {})
    sources = found.settings.data.sources
    assert (sources["a"].kind, sources["b"].kind) == ("files", "huggingface")
    with pytest.raises(ConfigurationError, match=r"^data\.sources\.a\.kind is missing"):
        load_settings([], ["data.sources.a.weight=2"], {})


def test_a_path_over_a_file_that_chose_data_without_one(tmp_path):
    """A path in a higher layer wins over the kind of a lower one that has no path, and a chosen kind over both."""
    file = tmp_path / "a.yaml"
    file.write_text("data: {kind: python_library, holdout: 0}")
    data = load_settings([file], ["data.path=x"], {}).settings.data
    assert (data.kind, data.holdout) == ("files", 0)
    chosen = load_settings([file], ["data.kind=huggingface"], {"HOLDFAST_DATA__PATH": "x"}).settings.data
    assert (chosen.kind, chosen.path) == ("huggingface", "x")
    file.write_text("data: {kind: huggingface, path: a/b}")
    assert load_settings([file], ["data.path=c"], {}).settings.data.kind == "huggingface"
