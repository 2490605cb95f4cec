"""Lineage events as OpenLineage's own client writes and sends them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast.adapters.shared import openlineage
from holdfast.adapters.shared.openlineage import OpenLineageSink
from holdfast.domain.data.dataset_version import JobExecution, JobState, LineageDataset
from holdfast.domain.errors import ConfigurationError

EXECUTION = JobExecution("a.prepare")
SOURCE = LineageDataset("s3://bucket", "talk", records=12, num_bytes=345, files=2)
TOKENS = LineageDataset("file", "/cache/d1", version="0123456789ab", records=10, fields=[("ids", "uint16")])


@pytest.fixture
def server():
    """Yield the address of a server, and the requests that it got: path, headers and body."""
    requests = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers), json.loads(body)))
            self.send_response(500 if "bad" in self.headers.get("Authorization", "") else 201)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        thread = threading.Thread(target=receiver.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{receiver.server_port}", requests
        receiver.shutdown()
        thread.join()


def test_a_file_gets_one_line_an_event(tmp_path, monkeypatch):
    """Events are appended; each has its state, the datasets, their version and figures, and nothing of the machine."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "console")  # the user's own client settings have no effect
    path = tmp_path / "new" / "events.jsonl"
    sink = OpenLineageSink(file=path)
    sink(EXECUTION.event(JobState.START, [SOURCE], []))
    sink(EXECUTION.event(JobState.COMPLETE, [SOURCE], [TOKENS]))
    start, end = map(json.loads, path.read_text().splitlines())
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert end["job"] == {"namespace": "holdfast", "name": "a.prepare", "facets": {}}
    [source], [tokens] = end["inputs"], end["outputs"]
    assert (source["namespace"], source["name"]) == ("s3://bucket", "talk")
    metrics = source["inputFacets"]["dataQualityMetrics"]
    assert (metrics["rowCount"], metrics["bytes"], metrics["fileCount"]) == (12, 345, 2)
    assert tokens["facets"]["version"]["datasetVersion"] == "0123456789ab"
    assert [(each["name"], each["type"]) for each in tokens["facets"]["schema"]["fields"]] == [("ids", "uint16")]
    assert tokens["outputFacets"]["outputStatistics"]["rowCount"] == 10
    assert set(end["run"]["facets"]) == {"processing_engine"}


def test_a_server_gets_each_event_with_the_token(server):
    """Events are posted to the usual address below the URL, with the token, and an error's message as a facet."""
    url, requests = server
    sink = OpenLineageSink(url=url, token="good")
    sink(EXECUTION.event(JobState.FAIL, [SOURCE], [], "DataError: line 3"))
    [(path, headers, event)] = requests
    assert (path, headers["Authorization"]) == ("/api/v1/lineage", "Bearer good")
    assert event["run"]["facets"]["errorMessage"]["message"] == "DataError: line 3"


def test_a_server_that_refuses_is_an_error_of_the_sink(server):
    """The sink raises what the server answers; its caller decides what becomes of it."""
    url, _ = server
    with pytest.raises(Exception, match="500"):
        OpenLineageSink(url=url, token="bad")(EXECUTION.event(JobState.START, [], []))


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    """Without the extra the settings are refused in one sentence that says how to install it."""
    monkeypatch.setattr(openlineage, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"holdfast-lm\[lineage\]"):
        OpenLineageSink(file=tmp_path / "events.jsonl")
