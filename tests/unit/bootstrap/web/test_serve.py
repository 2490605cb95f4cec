from __future__ import annotations

import http.client
import socket
from urllib.parse import urlsplit

import pytest

from holdfast.bootstrap.web import serve
from holdfast.bootstrap.web.access import AccessRules
from holdfast.bootstrap.web.serve import address_of, bind, check_packages, serving
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
