"""T16, T17 and T18: files that were made to run code, to be opened elsewhere, or to be too much."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from holdfast.adapters.state_store.hashing import hash_bytes
from holdfast.adapters.state_store.manifest import commit_of
from tests.support.forked_runs import FOLDER, stored_steps

pytestmark = pytest.mark.slow

NAMES = [
    *("pytorch_model.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scheduler.bin", "rng_state.pth"),
    *("training_args.bin", "scaler.pt", "data.pkl", "random_states_0.pkl", "adapter_model.bin", "model.pt"),
    *("consolidated.00.pth", "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt", ".metadata"),
    *("model.safetensors", "optimizer.safetensors", "optimizer.json", "tokenizer.json", "config.json", "run.json"),
]


class Evil:
    """Makes the file ``sentinel`` when it is unpickled."""

    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return Path.touch, (self.sentinel,)


def plant(path, sentinel):
    """Write a pickle that makes ``sentinel``, bare or, for names of torch, in a zip as torch writes it."""
    data = pickle.dumps(Evil(sentinel), protocol=2)
    if path.suffix in {".bin", ".pt", ".pth"}:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("archive/data.pkl", data)
            file.writestr("archive/version", "3\n")
    else:
        path.write_bytes(data)


def recommit(folder):
    """Make the manifest of ``folder`` list whatever lies there, as whoever writes a hostile checkpoint would."""
    record = json.loads((folder / "MANIFEST.json").read_bytes())
    files = [
        path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in {"MANIFEST.json", "COMMIT"}
    ]
    record["files"] = [
        {"path": path.name, "size": path.stat().st_size, "hash": hash_bytes(path.read_bytes())} for path in files
    ]
    data = json.dumps(record).encode()
    (folder / "MANIFEST.json").write_bytes(data)
    (folder / "COMMIT").write_bytes(commit_of(data))


@pytest.fixture
def trained(runs, home):
    """Return the newest checkpoint of a run in ``home`` that has been stopped before its end."""
    assert runs.run(home, "run.budget.steps=4")["code"] == 0
    return home / FOLDER / "checkpoints/checkpoint-4"


@pytest.mark.parametrize("is_listed", [False, True], ids=["extra", "listed"])
def test_no_pickle_in_a_checkpoint_is_opened(runs, home, trained, is_listed):
    """T16: pickles under every usual name beside the files of a checkpoint run no code, listed in it or not."""
    for name in NAMES:
        if not (trained / name).exists():
            plant(trained / name, home / "sentinel")
    if is_listed:
        recommit(trained)
    result = runs.run(home)
    assert result["code"] == 0, (home / "err.log").read_text()
    assert stored_steps(home)[-1] == 12
    assert not (home / "sentinel").exists()
    assert bool(list((home / FOLDER / "quarantine").iterdir())) is not is_listed


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_pickle_in_the_place_of_a_file_is_refused(runs, home, trained, name):
    """T16: a committed checkpoint of which a file is a pickle exits with a typed code, and runs no code."""
    plant(trained / name, home / "sentinel")
    recommit(trained)
    result = runs.run(home)
    assert result["code"] == 4, (home / "err.log").read_text()
    assert "Traceback" not in (home / "err.log").read_text()
    assert not (home / "sentinel").exists()


@pytest.fixture
def model(runs, home):
    """Return a folder of Hugging Face with a model of which the weights are not in one file."""
    folder = home / "model"
    result = runs.run(home / "out", command=["export", str(runs.home / "undisturbed" / FOLDER), str(folder)])
    assert result["code"] == 0, (home / "out/err.log").read_text()
    return folder


def of_model(runs, home, folder, **job):
    """Return how a run of the model in ``folder`` ended, and what it said."""
    settings = [one for one in runs.settings() if not one.startswith("model.")]
    more = ["model.kind=huggingface", f"model.path={folder}", "run.budget.steps=2"]
    result = runs.run(home / "of-model", command=[*settings, *more], **job)
    return result, (home / "of-model/err.log").read_text()


@pytest.mark.parametrize("name", ["pytorch_model.bin", pytest.param("model.safetensors", marks=pytest.mark.slow)])
def test_pickled_weights_of_a_model_are_refused(runs, home, model, name):
    """T16: a model whose weights are a malicious pickle exits with a typed code, and runs no code."""
    (model / "model.safetensors").unlink()
    plant(model / name, home / "sentinel")
    result, errors = of_model(runs, home, model)
    assert result["code"] in {2, 3, 4}, errors
    assert not (home / "sentinel").exists()


def test_a_weight_map_with_a_name_that_cannot_be_is_refused(runs, home, model):
    """T17: a map of weights that names a file with a NUL exits with a typed code."""
    weights = model / "model.safetensors"
    header = weights.read_bytes()
    keys = [key for key in json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")]) if key != "__metadata__"]
    weights.rename(home / "weights.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(keys, "weights\0.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    result, errors = of_model(runs, home, model)
    assert result["code"] in {2, 3, 4}, errors
    assert "Traceback" not in errors


PLACES = [
    "PIPE",
    "../outside/weights.safetensors",
    "ABSOLUTE",
    "LINK",
    "weights\0.safetensors",
    "linked/weights.safetensors",
]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_weight_map_opens_nothing_outside(runs, home, model, place):
    """T17: a map of weights that leads out of the model's folder, or nowhere, exits with a typed code, unopened."""
    outside = home / "outside"
    outside.mkdir()
    weights = outside / "weights.safetensors"
    (model / "model.safetensors").rename(weights)
    name = {"ABSOLUTE": str(weights), "LINK": "weights.safetensors"}.get(place, place)
    if place == "PIPE":
        name = "weights.safetensors"
        os.mkfifo(model / name)
    elif place == "LINK":
        (model / name).symlink_to(weights)
    elif place.startswith("linked"):
        (model / "linked").symlink_to(outside)
    header = weights.read_bytes()
    keys = [key for key in json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")]) if key != "__metadata__"]
    index = {"metadata": {}, "weight_map": dict.fromkeys(keys, name)}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    result, errors = of_model(runs, home, model, watch=str(outside))
    assert result["code"] in {2, 3, 4}, errors
    assert result["opened"] == 0


@pytest.mark.parametrize("size", [100_000_000, 104_857_600])
def test_an_endless_header_is_refused_at_once(runs, home, trained, size):
    """T18: weights whose header has 100 MB exit with a typed code, within a second, in bounded memory."""
    with (trained / "model.safetensors").open("wb") as file:
        file.write(size.to_bytes(8, "little"))
        file.truncate(size + 8)
    recommit(trained)
    result = runs.run(home)
    assert result["code"] == 4, (home / "err.log").read_text()
    assert result["grown_kib"] < 400 << 10


def bomb():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize("text", [bomb(), "[" * 5000, "run: " + "{a: " * 5000, "- " * 5000], ids=["aliases", *"123"])
def test_a_configuration_that_explodes_is_refused_at_once(runs, home, text):
    """T18: aliases that multiply, and 5,000 levels, end with 2 and a sentence, in a second's work and little memory."""
    (home / "bomb.yaml").write_text(text)
    result = runs.run(home, command=["config", "--config", "bomb.yaml"])
    assert result["code"] == 2
    assert result["cpu_seconds"] < 1
    assert result["grown_kib"] < 100 << 10
    errors = (home / "err.log").read_text()
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
