"""The server of the chat page: what it streams, to whom, and how a reply ends."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.training.generate import generate
from holdfast.bootstrap.web.serve import AccessRules
from holdfast.domain.errors import DataError
from holdfast.domain.training.text_generation import Sampling
from tests.support.asgi import ask
from tests.support.chat_models import Paced, chat_model

pytest.importorskip("starlette", reason="starlette comes with the extra `page`")
from holdfast.bootstrap.web.chat_app import chat_app

TOKEN = "correct horse battery"


def app_of(*models, token=None, plain=False):
    return chat_app(models or [chat_model()], Sampling(), AccessRules(token), plain=plain)


def asked(text="a", number=0, **sampling):
    return json.dumps({"model": number, "text": text, "sampling": sampling}).encode()


def events_in(answer):
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


def once(*arguments, **options):
    return asyncio.run(ask(*arguments, **options))


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 4, "temperature": 1.5, "top_k": 9, "top_p": 0.9}])
def test_a_reply_is_streamed_in_order(sampling):
    """Start, then each token of ``generate`` with its text, then the end with its reason."""
    used = chat_model()
    events = events_in(once(app_of(used), "/reply", body=asked("é", max_new_tokens=30, **sampling)))
    assert [events[0]["kind"], events[-1]["kind"], events[-1]["reason"]] == ["start", "end", "length"]
    assert events[0]["prompt_tokens"] == 2
    told = [event for event in events if event["kind"] == "token"]
    trainable, wanted = used.trained.trainable, Sampling(**{"max_new_tokens": 30, **sampling})
    ids = [event["id"] for event in told if event["id"] is not None]
    assert ids == list(trainable.generate(list("é".encode()), wanted, end_of_text=256))
    assert "é" + "".join(event["text"] for event in told) == generate(trainable, MemoryTokenizer(), "é", wanted)


def test_a_token_is_sent_before_the_next_is_computed():
    """Each token is sent while the next one is not yet allowed: nothing waits for the whole reply."""
    paced, sent = Paced(1), []

    def allow_next(come):
        if come.count(b'"token"') > len(sent):
            sent.append(paced.told)
            paced.allow(1)
        return False

    events = events_in(once(app_of(chat_model(paced)), "/reply", body=asked(max_new_tokens=15), leaves=allow_next))
    assert events[-1]["kind"] == "end"
    assert sent == list(range(1, 16))


def test_a_reply_ends_when_the_browser_leaves():
    """A request that is broken off ends its reply at the next token, and the model is free again."""
    paced = Paced(3)
    app = app_of(chat_model(paced))

    async def leave_and_ask():
        await ask(app, "/reply", body=asked(max_new_tokens=5000), leaves=lambda come: come.count(b'"token"') >= 3)
        paced.allow()
        return await ask(app, "/reply", body=asked(max_new_tokens=2))

    events = events_in(asyncio.run(leave_and_ask()))
    assert events[-1]["kind"] == "end"
    assert paced.told == 3 + 1 + 2  # the reply learns of the end at the token after the third


def test_the_replies_of_one_model_come_one_after_another():
    """A second request to a busy model is told that it waits, and then answered; another model answers meanwhile."""
    paced = Paced(5)
    app = app_of(chat_model(paced), chat_model(name="second"))

    async def three():
        waits = asyncio.Event()
        one, two = (
            asyncio.create_task(ask(app, "/reply", body=asked(max_new_tokens=20, temperature=0), leaves=leaves))
            for leaves in (never, noting(waits, b"waiting"))
        )
        other = await ask(app, "/reply", body=asked(number=1, max_new_tokens=20, temperature=0))
        await waits.wait()
        assert not one.done()
        paced.allow()
        return await one, await two, other

    found = [events_in(answer) for answer in asyncio.run(three())]
    assert [events[0] for events in found] == [
        found[0][0] | {"kind": "start"},
        {"kind": "waiting", "ahead": 1},
        found[2][0] | {"kind": "start"},
    ]
    texts = [[event["text"] for event in events if event["kind"] == "token"] for events in found]
    assert texts[0] == texts[1] == texts[2]


def never(_come):
    return False


def noting(event, text):
    """Return what a client calls with all that has come: it stays, and sets ``event`` once ``text`` is in it."""

    def note(come):
        if text in come:
            event.set()
        return False

    return note


def test_a_request_that_waits_can_be_given_up():
    """A request that leaves while it waits is not computed, and those behind it are."""
    paced = Paced(10)
    app = app_of(chat_model(paced))

    async def three():
        begins = asyncio.Event()
        first = asyncio.create_task(
            ask(app, "/reply", body=asked(max_new_tokens=30), leaves=noting(begins, b'"token"'))
        )
        await begins.wait()
        await ask(app, "/reply", body=asked(max_new_tokens=30), leaves=lambda come: b"waiting" in come)
        paced.allow()
        last = await ask(app, "/reply", body=asked(max_new_tokens=5))
        return await first, last

    first, last = asyncio.run(three())
    assert events_in(first)[-1]["kind"] == events_in(last)[-1]["kind"] == "end"
    assert paced.told == 35


def test_other_requests_are_answered_meanwhile():
    """The server answers while a reply is computed."""
    paced = Paced(1)
    app = app_of(chat_model(paced))

    async def both():
        begins = asyncio.Event()
        reply = asyncio.create_task(
            ask(app, "/reply", body=asked(max_new_tokens=50), leaves=noting(begins, b'"token"'))
        )
        await begins.wait()
        answer = await ask(app, "/models")
        was_done = reply.done()
        paced.allow()
        return answer, was_done, await reply

    answer, was_done, reply = asyncio.run(both())
    assert (answer.status, was_done) == (200, False)
    assert events_in(reply)[-1]["kind"] == "end"


def test_the_models_are_described():
    """The page learns of each model's name and size, whether it has a chat template, and the usual sampling."""
    found = json.loads(once(app_of(chat_model(), chat_model(name="second")), "/models").body)
    assert [each["name"] for each in found["models"]] == ["first, step 3", "second"]
    assert found["models"][0]["parameters"] == 257 * 257
    assert not found["models"][0]["has_template"]
    assert found["sampling"] == {"temperature": 0.8, "top_k": 50, "top_p": 1.0, "max_new_tokens": 128, "seed": 0}


def test_a_conversation_needs_a_chat_template():
    """Without a template a conversation is refused in one sentence, and nothing is computed."""
    paced = Paced()
    body = json.dumps({"model": 0, "messages": [{"role": "user", "text": "hi"}]}).encode()
    events = events_in(once(app_of(chat_model(paced)), "/reply", body=body))
    message = "the tokenizer of first, step 3 has no chat template: it continues plain text only"
    assert events == [{"kind": "error", "message": message}]
    assert paced.told == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [(DataError("no such role"), "no such role"), (ValueError("secret"), "the terminal of the server shows why")],
)
def test_an_error_ends_a_reply_and_not_the_server(error, said):
    """An error in the middle of a reply is told in a sentence, without its traceback, and the next one is answered."""
    paced = Paced()
    app = app_of(chat_model(paced))
    inner, paced.inner = paced.inner, SimpleNamespace(generate=fails_with(error), num_positions=None)
    events = events_in(once(app, "/reply", body=asked()))
    assert [event["kind"] for event in events] == ["start", "error"]
    assert said in events[-1]["message"]
    assert "secret" not in events[-1]["message"]
    paced.inner = inner
    assert events_in(once(app, "/reply", body=asked(max_new_tokens=1)))[-1]["kind"] == "end"


def fails_with(error):
    def generate(*_, **__):
        raise error

    return generate


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xff", "JSON in UTF-8"),
        (b"[]", "either a text or messages"),
        (b"[" * 100_000, "not JSON"),
        (b'{"model": 0}', "either a text or messages"),
        (b'{"model": 0, "text": "a", "messages": []}', "either a text or messages"),
        (b'{"model": 0, "text": "a", "more": 1}', "either a text or messages"),
        (b'{"model": 1, "text": "a"}', "model is a whole number from 0 to 0"),
        (b'{"model": true, "text": "a"}', "model is a whole number"),
        (b'{"model": 0, "text": 5}', "a text is a string"),
        (b'{"model": 0, "messages": []}', "not empty"),
        (b'{"model": 0, "messages": [{"role": "root", "text": ""}]}', "system, user, assistant, not 'root'"),
        (b'{"model": 0, "messages": [{"role": "user"}]}', "a text is a string"),
        (b'{"model": 0, "text": "a", "sampling": {"temperature": NaN}}', "temperature is a number from 0 to 100"),
        (b'{"model": 0, "text": "a", "sampling": {"temperature": "1"}}', "temperature is a number"),
        (b'{"model": 0, "text": "a", "sampling": {"top_p": 0}}', "top_p is a number from 1e-06 to 1"),
        (b'{"model": 0, "text": "a", "sampling": {"max_new_tokens": 0}}', "max_new_tokens is a whole number from 1"),
        (b'{"model": 0, "text": "a", "sampling": {"seed": -1}}', "seed is a whole number from 0"),
        (b'{"model": 0, "text": "a", "sampling": {"best": 1}}', "sampling has the members"),
        (b'{"model": 0, "text": "' + b"a" * (1 << 20) + b'"}', "larger than 1048576 bytes"),
    ],
)
def test_a_request_that_is_wrong_is_refused(body, said):
    """Anything that the page does not send gets status 400 and a sentence."""
    answer = once(app_of(), "/reply", body=body)
    assert answer.status == 400
    assert said in json.loads(answer.body)["message"]


def test_half_a_surrogate_pair_is_replaced():
    """A lone half of a pair, which is no text, is replaced and does not fail the tokenizer."""
    assert events_in(once(app_of(), "/reply", body=b'{"model": 0, "text": "\\ud800"}'))[-1]["kind"] == "end"


@pytest.mark.parametrize("path", ["/", "/models", "/static/chat.js", "/reply"])
def test_everything_needs_the_token(path):
    """Without the token, or with another, each address is refused; with it each is answered."""
    app, body = app_of(token=TOKEN), asked(max_new_tokens=1) if path == "/reply" else None
    wrong = [{}, {"authorization": "Bearer another token of length"}]
    assert [once(app, path, body=body, headers=each).status for each in wrong] == [401, 401]
    assert once(app, path, body=body, headers={"authorization": f"Bearer {TOKEN}"}).status == 200


def test_the_rules_of_access_hold():
    """Another machine, another site, another name of this machine and a request without our header are refused."""
    app, body = app_of(), asked()
    assert once(app, "/reply", body=body, client="192.0.2.7").status == 403
    assert once(app, "/reply", body=body, headers={"origin": "http://evil.example"}).status == 403
    assert once(app, "/", headers={"host": "evil.example"}).status == 403
    assert once(app, "/reply", body=body, headers={"x-holdfast": "0"}).status == 403


@pytest.mark.parametrize("path", ["/", "/static/chat.js", "/static/chat.css", "/static/theme.css"])
def test_the_page_needs_nothing_else(path):
    """The files of the page are served with a policy that lets it load nothing from elsewhere, and name nothing."""
    answer = once(app_of(), path)
    assert answer.status == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert b"http:" not in answer.body
    assert b"https:" not in answer.body


def test_no_text_is_inserted_as_html():
    """The page's script has no means to turn a text into elements."""
    script = once(app_of(), "/static/chat.js").body.decode()
    assert not [word for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write") if word in script]
