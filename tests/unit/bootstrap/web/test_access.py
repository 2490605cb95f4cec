from __future__ import annotations

import asyncio
import os

import pytest

from holdfast.bootstrap.web.serve import CONFIRMATION, Access, AccessRules, check_host, token_from
from holdfast.domain.errors import ConfigurationError

TOKEN = "a-token-of-many-letters"
LOCAL = {"host": "127.0.0.1:8473"}
OWN = {"origin": "http://127.0.0.1:8473", "sec-fetch-site": "same-origin", CONFIRMATION: "1"}


async def _inside(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"inside"})


def ask(method="GET", path="/", headers=LOCAL, *, token=None, client="127.0.0.1", query=""):
    """Return status, headers and body of the answer to one request."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": (client, 50000),
    }
    asyncio.run(Access(_inside, AccessRules(token))(scope, None, send))
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8473", "LOCALHOST"])
def test_names_of_this_machine_are_answered(host):
    """Each name of this machine is answered, at any port, so that a tunnel works."""
    assert ask(headers={"host": host})[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8473", "127.0.0.1.evil.example", "10.0.0.7", "", "[::1"]
)
def test_other_names_are_refused(host):
    """A page whose name was pointed at this machine by its own name server gets nothing."""
    status, _, body = ask(headers={"host": host})
    assert status == 403
    assert b"inside" not in body


def test_other_machines_are_refused_without_a_token():
    """A request from another machine is refused, whatever its host header says."""
    assert ask(client="10.0.0.7")[0] == 403


def test_each_answer_has_the_headers_that_keep_others_out():
    """Answers and refusals forbid foreign scripts, frames, guesses of types and copies."""
    for status, headers, _ in (ask(), ask(headers={"host": "evil.example"}), ask(token=TOKEN)):
        assert "default-src 'none'" in headers["content-security-policy"], status
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_a_press_of_a_button_of_the_page_is_answered():
    """The page's own POST is answered."""
    assert ask("POST", headers=LOCAL | OWN)[0] == 200


@pytest.mark.parametrize(
    "changed",
    [
        {CONFIRMATION: None},
        {CONFIRMATION: "0"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_press_by_another_site_is_refused(changed):
    """A POST without the header, or from another site or another port of this machine, is refused."""
    headers = {name: value for name, value in (LOCAL | OWN | changed).items() if value is not None}
    assert ask("POST", headers=headers)[0] == 403


def test_another_site_may_link_to_the_page_only():
    """A link from elsewhere opens the page, and an image, a frame or a script of another site gets nothing."""
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(headers=LOCAL | link)[0] == 200
    assert ask(headers=LOCAL | link | {"sec-fetch-dest": "iframe"})[0] == 403
    assert ask(headers=LOCAL | link | {"sec-fetch-mode": "no-cors"})[0] == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(method):
    """Nothing but GET, HEAD and POST is answered, so that no browser gets permission for more."""
    assert ask(method)[0] == 405


def test_a_token_is_needed_for_everything():
    """Without the token each method and path is refused, also on this machine, and no byte of the page is shown."""
    for method, path in (("GET", "/"), ("GET", "/static/page.js"), ("GET", "/api/state"), ("HEAD", "/")):
        status, _, body = ask(method, path, token=TOKEN)
        assert status == 401
        assert b"inside" not in body
    assert ask("POST", "/api/runs/0/stop", LOCAL | OWN, token=TOKEN)[0] == 401


@pytest.mark.parametrize("given", [TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "", "\u00e9"])
def test_a_wrong_token_is_refused(given):
    """A token that differs anywhere is no token."""
    assert ask(token=TOKEN, query=f"token={given}")[0] == 401
    assert ask(headers=LOCAL | {"authorization": f"Bearer {given}"}, token=TOKEN)[0] == 401


def test_the_link_gives_a_cookie_that_opens_the_page():
    """The first link is answered by a cookie and the address without the token, and the cookie is enough from then."""
    status, headers, _ = ask(path="/x", token=TOKEN, query=f"a=1&token={TOKEN}", client="10.0.0.7")
    assert (status, headers["location"]) == (303, "/x?a=1")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Lax"} <= set(attributes)
    remote = {"host": "gpu7:8473", "cookie": f"other=1; {cookie}"}
    assert ask(headers=remote, token=TOKEN, client="10.0.0.7")[0] == 200
    assert ask(headers=remote, token="another-token-of-letters")[0] == 401


def test_a_link_leads_to_no_other_host():
    """A path that begins with two slashes is not taken for another machine."""
    assert ask(path="//evil.example/x", token=TOKEN, query=f"token={TOKEN}")[1]["location"] == "/evil.example/x"


def test_programs_send_the_token_as_a_header():
    """``Authorization: Bearer`` opens the page for programs."""
    assert ask(headers=LOCAL | {"authorization": f"bearer {TOKEN}"}, token=TOKEN)[0] == 200


def test_a_header_may_have_any_characters_of_a_token():
    """A token with an umlaut is known in a header, whose bytes are UTF-8."""
    token = "ein-Wörtchen-mit-Umlauten"
    assert ask(headers=LOCAL | {"authorization": f"Bearer {token}"}, token=token)[0] == 200


def test_web_sockets_are_refused():
    """No WebSocket gets through, as browsers let any site open one."""
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Access(_inside, AccessRules())({"type": "websocket", "headers": []}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_token_is_read_where_it_is(tmp_path, monkeypatch):
    """A token comes from a variable, a file, or chance, and never from the command line."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("PAGE_TOKEN", TOKEN)
    monkeypatch.setenv("BYTES", os.fsdecode(b"\xff" * 20))
    assert token_from(f"file:{tmp_path}/token", setting="x") == TOKEN
    assert token_from("env:PAGE_TOKEN", setting="x") == TOKEN
    assert token_from(None, setting="x") is None
    assert len({token_from("new", setting="x") for _ in range(3)}) == 3
    for place, words in (
        (TOKEN, "env:NAME"),
        ("env:MISSING_ONE", "MISSING_ONE"),
        (f"file:{tmp_path}", "cannot be read"),
        ("file:~nobody-of-this-name/token", "home folder that this machine does not know"),
        ("env:BYTES", "cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            token_from(place, setting="--token-from")


def test_a_short_token_is_refused(monkeypatch):
    """A token that could be guessed is refused with its length."""
    monkeypatch.setenv("PAGE_TOKEN", "short")
    with pytest.raises(ConfigurationError, match=r"5 characters.*16"):
        token_from("env:PAGE_TOKEN", setting="--token-from")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gpu7"])
def test_other_machines_need_a_token(host):
    """A host that others can reach is refused without a token, and the message says what to add."""
    with pytest.raises(ConfigurationError, match="--token-from new"):
        check_host(host, None, setting="--token-from")
    check_host(host, TOKEN, setting="--token-from")
