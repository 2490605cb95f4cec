"""Model folders that lead elsewhere are refused before anything in them is opened."""

import json
import os

import pytest

from holdfast.adapters.model_factory.model_folder import check_model_folder, read_json
from holdfast.domain.errors import ConfigurationError


@pytest.fixture
def folder(tmp_path):
    """Return a model folder of two shards, with a file outside of it."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors", "config.json"):
        (folder / name).write_bytes(b"{}")
    index_of(folder, "a.safetensors", "b.safetensors")
    (tmp_path / "outside").write_bytes(b"secret")
    return folder


def index_of(folder, *names):
    weight_map = {f"tensor{number}": name for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_usual_folder_is_taken(folder):
    """Shards and their map, a folder beside them, and links within the folder are nothing strange."""
    (folder / "original").mkdir()
    (folder / "c.safetensors").symlink_to("a.safetensors")
    check_model_folder(folder)
    assert (folder / "c.safetensors").is_symlink()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/a.safetensors", "..", "", "a\\b", "a\0b"])
def test_a_map_of_weights_names_files_of_its_folder_alone(folder, name):
    """A path in the map, whichever way it leads, is refused by name."""
    index_of(folder, "a.safetensors", name)
    with pytest.raises(ConfigurationError, match="not a file in the same folder"):
        check_model_folder(folder)


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": 3}', "[" * 100_000])
def test_a_map_that_is_none_is_a_sentence(folder, text):
    """What is not an index of weights is said to be none."""
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ConfigurationError, match="not an index of weights"):
        check_model_folder(folder)


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_what_leads_out_or_waits_is_refused(folder, kind):
    """A link to a file or folder outside, one to nothing, and a pipe, which would make a reader wait for ever."""
    strange = folder / "model.safetensors"
    if kind == "pipe":
        os.mkfifo(strange)
    else:
        strange.symlink_to({"link": "../outside", "dangling": "../nothing", "folder": ".."}[kind])
    with pytest.raises(ConfigurationError, match=r"model\.safetensors"):
        check_model_folder(folder)


def test_the_hub_s_own_links_are_taken(tmp_path):
    """A snapshot in the hub's cache is links to blobs beside it, and to nowhere else."""
    snapshot = tmp_path / "models--a--b/snapshots/123"
    snapshot.mkdir(parents=True)
    blob = tmp_path / "models--a--b/blobs/456"
    blob.parent.mkdir()
    blob.write_bytes(b"weights")
    (snapshot / "model.safetensors").symlink_to("../../blobs/456")
    check_model_folder(snapshot)
    (snapshot / "config.json").symlink_to("../../refs")
    with pytest.raises(ConfigurationError, match="leads out"):
        check_model_folder(snapshot)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000], ids=["empty", "list", "bytes", "deep"])
def test_a_description_that_is_no_object_is_a_sentence(tmp_path, content):
    """A file of a model that holds no JSON object, or one of too many levels, is refused by name."""
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000], ids=["empty", "list", "bytes", "deep"])
def test_damaged_settings_of_generation_are_refused(folder, content):
    """Settings of generation that cannot be read are refused: transformers would take its defaults in their place."""
    (folder / "generation_config.json").write_bytes(b"{}")
    check_model_folder(folder)
    (folder / "generation_config.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"generation_config\.json"):
        check_model_folder(folder)
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").mkdir()
    with pytest.raises(ConfigurationError, match=r"generation_config\.json"):
        check_model_folder(folder)
