"""The part of W&B's server that its library needs to record runs: GraphQL for runs, and the stream of their rows."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class ServedRun:
    """A run of W&B: ``history`` has its rows, and ``log`` the lines of the tab Logs."""

    name: str
    display_name: str = ""
    group: str = ""
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.history]


class WandbServer:
    """Serves at ``url``."""

    def __init__(self) -> None:
        self.runs: dict[str, ServedRun] = {}
        self.operations: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self._body()
                answer = server.answer(self.path, json.loads(body) if body else {})
                self._send(json.dumps(answer).encode())

            def do_PUT(self) -> None:
                self._body()
                self._send(b"")

            def do_GET(self) -> None:
                self._send(b"{}")

            def _body(self) -> bytes:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

            def _send(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/file_stream"):
            return self._stream(path.split("/")[-2], request)
        operation, variables = request.get("operationName", ""), request.get("variables") or {}
        self.operations.append(operation)
        method = {
            "CreateRunFiles": self._files,
            "RunResumeStatus": self._resume,
            "ServerFeaturesQuery": self._server_features,
            "UpsertBucket": self._upsert,
            "Viewer": self._viewer,
        }.get(operation)
        return {"data": {} if method is None else method(variables)}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _stream(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[name]
        for file, chunk in (request.get("files") or {}).items():
            if file == "wandb-summary.json":
                run.summary = json.loads(chunk["content"][-1])
                continue
            lines = {"wandb-history.jsonl": run.history, "output.log": run.log}.get(file, [])
            lines[chunk["offset"] : chunk["offset"] + len(chunk["content"])] = chunk["content"]
        if request.get("complete"):
            run.exit_codes.append(request.get("exitcode"))
        return {"exitcode": None, "limits": {}}

    def _viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        viewer = {"id": "v", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer}

    def _server_features(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables.get("name") or next(run.name for run in self.runs.values() if run.name == variables["id"])
        is_new = name not in self.runs
        run = self.runs.setdefault(name, ServedRun(name))
        run.project = variables.get("project") or run.project
        run.display_name = variables.get("displayName") or run.display_name
        run.group = variables.get("groupName") or run.group
        run.config |= json.loads(variables.get("config") or "{}")
        return {"upsertBucket": {"bucket": self._bucket(run), "inserted": is_new}}

    def _resume(self, variables: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(variables["name"])
        model = {"id": "m", "name": variables["project"], "entity": {"id": "e", "name": "me"}, "bucket": None}
        if run is not None:
            model["bucket"] = self._bucket(run) | {
                "summaryMetrics": json.dumps(run.summary),
                "logLineCount": len(run.log),
                "eventsLineCount": 0,
                "historyTail": json.dumps(run.history[-1:]),
                "eventsTail": "[]",
                "tags": [],
                "notes": "",
                "wandbConfig": '{"t": 1}',
            }
        return {"model": model}

    def _files(self, variables: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/storage"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def _bucket(self, run: ServedRun) -> dict[str, Any]:
        return {
            "id": run.name,
            "name": run.name,
            "displayName": run.display_name,
            "description": "",
            "config": json.dumps(run.config),
            "sweepName": None,
            "project": {"id": "p", "name": run.project, "entity": {"id": "e", "name": "me"}},
            "historyLineCount": len(run.history),
        }


@contextlib.contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Yield a server that knows no run."""
    server = WandbServer()
    try:
        yield server
    finally:
        server.close()
