"""A hub of our own on this machine, asked by processes that find nothing but it."""

import json
import os
import subprocess
import sys
import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, write

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHILD = """
import json, sys
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.model_factory.loaded_weights import Trust
from holdfast.domain.errors import ConfigurationError
for settings in map(json.loads, sys.argv[1:]):
    settings["trusts"] = Trust(settings.pop("code_of", None))
    try:
        model = HuggingfaceModelFactory(**settings).build(vocabulary_size=257, end_of_text=256, seed=99)
    except ConfigurationError as error:
        print("said: refused:", error)
    else:
        print("said: sum:", sum(float(p.detach().double().sum()) for p in model.parameters()))
"""


class Hub(BaseHTTPRequestHandler):
    """Has ``some/model`` at the revision ``old``, and ``closed/model`` for nobody; keeps what it was asked."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append((self.path, self.headers.get("Authorization")))
        name = self.path.rsplit("/", 1)[-1].split("?")[0]
        file = self.folder / name
        if self.path.startswith("/closed/"):
            return self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if not self.path.startswith("/some/model/"):
            return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if "/resolve/old/" not in self.path and COMMIT not in self.path:
            return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if not file.is_file():
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        content = file.read_bytes()
        return self._answer(200, content, {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def _answer(self, status, content, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(tmp_path):
    model = HuggingfaceModelFactory(config=CONFIG).build(
        vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0
    )
    folder = write(model.capture(), tmp_path / "model")
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    handler = type("OneHub", (Hub,), {"folder": folder, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("hf_storedtoken")  # as `hf auth login` leaves it
    handler.environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(home),
        "PYTHONPATH": str(ROOT),
    }
    handler.total = total
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def build(hub, *settings, **environment):
    """Return a line for each of ``settings``, all built by one process."""
    command = [sys.executable, "-c", CHILD, *map(json.dumps, settings)]
    child = subprocess.run(command, env=hub.environment | environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return [line.removeprefix("said: ") for line in child.stdout.splitlines() if line.startswith("said: ")]


@pytest.mark.slow
def test_a_model_is_fetched_by_name_and_revision(hub):
    """A name on the hub is built with the weights of the revision, and offline again from what was kept."""
    settings = {"path": "some/model", "revision": "old"}
    (line,) = build(hub, settings, HF_TOKEN="hf_fromenvironment")
    assert float(line.removeprefix("sum: ")) == pytest.approx(hub.total)
    assert "Bearer hf_fromenvironment" in {token for _, token in hub.asked}
    hub.asked.clear()
    assert build(hub, settings, HF_HUB_OFFLINE="1") == [line]
    assert not hub.asked


def test_only_the_environment_s_token_is_sent(hub):
    """A token that somebody once stored on the machine stays there."""
    (line,) = build(hub, {"path": "some/model", "revision": "old", "pretrained": False})
    assert line.startswith("sum:")
    assert hub.asked
    assert {token for _, token in hub.asked} == {None}


@pytest.mark.slow
def test_what_the_hub_refuses_is_said_in_one_line(hub):
    """A model that is not there, not open, or not kept while offline is refused in a sentence that says which."""
    unknown, closed = build(hub, {"path": "no/model"}, {"path": "closed/model"})
    (offline,) = build(hub, {"path": "some/model"}, HF_HUB_OFFLINE="1")
    assert unknown.startswith("refused: model no/model cannot be built: the hub has no no/model")
    assert "set HF_TOKEN" in closed
    assert "HF_HUB_OFFLINE forbids" in offline


@pytest.mark.slow  # the hub's client tries again for half a minute
def test_a_hub_out_of_reach_is_said_in_one_line(hub):
    """A hub that does not answer is told apart from one that has no such model."""
    (line,) = build(hub, {"path": "some/model"}, HF_ENDPOINT="http://127.0.0.1:9")
    assert "the hub cannot be reached" in line


@pytest.mark.slow
def test_code_runs_only_if_the_model_is_named(hub, tmp_path):
    """Code beside the weights runs if ``trusts.code_of`` is the model's own path, and for no other value."""
    folder, sentinel = tmp_path / "model", tmp_path / "sentinel"
    (folder / "configuration_own.py").write_text(
        f"open({str(sentinel)!r}, 'w').close()\nfrom transformers import LlamaConfig\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
    )
    (folder / "modeling_own.py").write_text(
        "from transformers import LlamaForCausalLM\nfrom .configuration_own import OwnConfig\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    described = json.loads((folder / "config.json").read_text()) | {
        "model_type": "own",
        "auto_map": {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"},
    }
    (folder / "config.json").write_text(json.dumps(described))
    strangers = [{"path": str(folder), "code_of": other} for other in (None, "some/model", f"{folder}/")]
    assert all(line.startswith("refused:") for line in build(hub, *strangers))
    assert not sentinel.exists()
    (line,) = build(hub, {"path": str(folder), "code_of": str(folder)})
    assert float(line.removeprefix("sum: ")) == pytest.approx(hub.total)
    assert sentinel.exists()
