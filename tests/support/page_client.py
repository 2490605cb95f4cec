"""A client of the live page that asks as a browser does."""

from __future__ import annotations

import http.client
import json
from contextlib import closing, contextmanager


class Client:
    """Asks the server at ``port``."""

    def __init__(self, port):
        self.port = port

    def ask(self, path, method="GET", **headers):
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())

    def json(self, path, method="GET", **headers):
        status, body, _ = self.ask(path, method, **headers)
        return status, json.loads(body)

    @contextmanager
    def stream(self, **headers):
        """Give the states of the stream, each with its id."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(
                "GET", "/api/stream", headers={name.replace("_", "-"): text for name, text in headers.items()}
            )
            yield states_in(connection.getresponse())


def states_in(answer):
    number = None
    while line := answer.readline():
        if line.startswith(b"id: "):
            number = line[4:].strip().decode()
        elif line.startswith(b"data: "):
            yield number, json.loads(line[6:])
