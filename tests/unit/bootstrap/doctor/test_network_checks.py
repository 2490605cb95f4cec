"""Requests to servers, and the credentials that they carry."""

import base64
import http.server
import threading

import pytest

from holdfast.bootstrap.doctor.finding import as_data, as_lines
from holdfast.bootstrap.doctor.named_places import HttpPlace, HubPlace, http_places, hub_places
from holdfast.bootstrap.doctor.network_checks import check_hub, check_server, mlflow_authorization, send_request
from tests.support.planted_troubles import closed_port, settings_of


@pytest.fixture
def server():
    """Yield the port of a server, and the list of the authorizations that it gets; /moved leads to /there."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            got.append((self.path, self.headers.get("Authorization")))
            self.send_response(302 if self.path == "/moved" else 200)
            if self.path == "/moved":
                self.send_header("Location", "/there")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running.server_port, got
        running.shutdown()
        thread.join()


def test_a_user_in_the_url_becomes_the_authorization(server):
    """User and password of a URL are sent as the header, and no part of the address."""
    port, got = server
    status, told = send_request(f"http://user:hunter2@127.0.0.1:{port}/a", 5)
    assert status == 200
    assert told is not None
    assert got == [("/a", f"Basic {base64.b64encode(b'user:hunter2').decode()}")]


def test_a_redirect_gets_no_credentials(server):
    """The place that a server refers to gets no authorization."""
    port, got = server
    send_request(f"http://127.0.0.1:{port}/moved", 5, "Bearer hunter2")
    assert got == [("/moved", "Bearer hunter2"), ("/there", None)]


def test_credentials_of_mlflow_are_those_of_its_client(monkeypatch):
    """A token comes before user and password, and without either there is no header."""
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    assert mlflow_authorization() is None
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "user")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    assert mlflow_authorization() == f"Basic {base64.b64encode(b'user:hunter2').decode()}"
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token")
    assert mlflow_authorization() == "Bearer token"


@pytest.mark.parametrize("url", ["http://user:hunter2@127.0.0.1:{}", "http://127.0.0.1:{}/?token=hunter2"])
def test_a_secret_in_a_url_is_not_shown(url):
    """Neither the table nor the JSON shows the password of a server that does not answer."""
    place = HttpPlace("data.lineage.url", url.format(closed_port()))
    finding = check_server(place, lambda each: send_request(each, 5))
    shown = f"{[*as_lines([finding])]}{as_data([finding])}"
    assert "127.0.0.1" in shown
    assert "hunter2" not in shown


def test_servers_of_the_settings_are_found(monkeypatch):
    """Trackers and lineage with a server are asked, those that write files are not."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    lineage = "data.lineage.url=http://marquez:5000"
    monitors = "monitors=[mlflow,wandb,{kind: wandb, project: other, mode: offline},jsonl]"
    assert [place.url for place in http_places(settings_of(lineage, monitors))] == [
        "https://api.wandb.ai",
        "http://marquez:5000",
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert http_places(settings_of("monitors=[mlflow]"))[0].url == "http://mlflow:5000"


def test_the_hub_is_asked_for_the_revision_of_a_dataset():
    """A dataset of the hub is looked for in the revision of the settings, also as the source of a mixture."""
    place = HubPlace("data.path", "owner/texts", "v2", "dataset")
    chosen = settings_of("data.kind=huggingface", "data.path=owner/texts", "data.revision=v2")
    assert [*hub_places(chosen)] == [place]
    source = "{kind: huggingface, path: owner/texts, revision: v2, weight: 1}"
    chosen = settings_of("data.kind=mixture", f"data.sources={{web: {source}}}")
    assert [(each.setting, each.revision) for each in hub_places(chosen)] == [("data.sources.web.path", "v2")]
    finding = check_hub(place, lambda: None, is_offline=False, is_cached=False)
    assert finding.detail == "the hub has the dataset owner/texts of revision v2"
