from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
from urllib.parse import urlsplit

import pytest

from holdfast.bootstrap.web import serve
from holdfast.bootstrap.web.serve import AccessRules, address_of, bind, check_packages, serving
from holdfast.domain.errors import ConfigurationError


async def _app(scope, _receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})


def test_a_page_is_served_and_ends():
    """Within the block the address answers, and afterwards the port is free."""
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    with serving(_app, bound) as address:
        assert address == f"http://127.0.0.1:{port}/"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"served"
        connection.close()
    bind("127.0.0.1", port).close()


async def _reading_app(scope, receive, send):
    while scope["type"] == "http" and (await receive()).get("more_body"):
        pass
    await _app(scope, receive, send)


HALVES = [
    b"",
    b"GET / HT",
    b"GET / HTTP/1.1\r\nHost: a\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT",  # the second one on a connection
]


def test_a_request_that_is_never_whole_ends_its_connection(monkeypatch):
    """Whichever half of a request a client sends, it keeps no connection; whole requests are answered meanwhile."""
    monkeypatch.setattr(serve, "SECONDS_TO_ASK", 0.2)
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    with serving(_reading_app, bound), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in 10 * HALVES]
        for client, half in zip(clients, 10 * HALVES, strict=True):
            client.sendall(half)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/", b"whole")
        assert connection.getresponse().read() == b"served"
        connection.close()
        for client in clients:
            while client.recv(4096):
                pass  # the answer to a first request that was whole


def test_an_answer_may_take_longer_than_a_request(monkeypatch):
    """The limit is one of asking: an answer that is still being sent, such as a stream, is not cut."""
    monkeypatch.setattr(serve, "SECONDS_TO_ASK", 0.05)

    async def streaming(scope, _receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(10):
                await asyncio.sleep(0.05)
                await send({"type": "http.response.body", "body": b"%d" % number, "more_body": number < 9})

    bound = bind("127.0.0.1", 0)
    with serving(streaming, bound):
        connection = http.client.HTTPConnection("127.0.0.1", bound.getsockname()[1], timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"0123456789"
        connection.close()


def test_a_taken_port_is_named():
    """A port of another program is an error that names it, if it was asked for."""
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1"):
            bind("127.0.0.1", port)


def test_the_usual_port_gives_way(monkeypatch):
    """If the usual port is taken and none was asked for, any free one is used."""
    with bind("127.0.0.1", 0) as taken:
        monkeypatch.setattr(serve, "PORT", taken.getsockname()[1])
        with bind("127.0.0.1", None) as other:
            assert other.getsockname()[1] != taken.getsockname()[1]


def test_a_host_of_another_machine_is_named():
    """An address that is none of this machine is an error that names it."""
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_the_address_has_the_token_and_a_name():
    """The link has the token, and the name of the machine where all its addresses are served."""
    with bind("0.0.0.0", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound, "secret") == f"http://{socket.gethostname()}:{port}/?token=secret"


def test_a_token_of_any_characters_is_in_the_link():
    """The link opens the page whatever characters its token has."""
    token = "a&b#c+d%20e f/ü?=ghi"
    with bind("127.0.0.1", 0) as bound:
        query = urlsplit(address_of(bound, token)).query
    scope = {"query_string": query.encode("ascii")}
    assert AccessRules(token).is_link(scope)


def test_a_host_that_is_no_name_is_named():
    """A host that no resolver can be asked for is an error in a sentence."""
    with pytest.raises(ConfigurationError, match=r"a\.\.b"):
        bind("a..b", 0)


def test_a_missing_package_is_named(monkeypatch):
    """Without the extra the message says what needs it and what to install."""
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r'the command "watch" .*holdfast-lm\[page\]'):
        check_packages('the command "watch"')
