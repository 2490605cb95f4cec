"""The chat page in a browser."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.training.generate import generate
from holdfast.domain.training.text_generation import Sampling
from tests.support.chat_models import KnownTemplate, Paced, Says, TemplatedTokenizer, chat_model

pytest.importorskip("uvicorn", reason="uvicorn comes with the extra `page`")
from holdfast.bootstrap.web.chat_app import chat_app
from holdfast.bootstrap.web.serve import AccessRules, bind, serving
from tests.support.browser import browser, page_at

GREEDY = Sampling(max_new_tokens=60, temperature=0.0)
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&amp; </div>"


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture
def opened(chromium):
    """Return a function that opens the page of models in the browser, which may ask nothing of another address."""

    @contextmanager
    def open_page(*models, sampling=GREEDY, token=None, **options):
        bound = bind("127.0.0.1", 0)
        link = "" if token is None else f"?token={token}"
        with (
            serving(chat_app(models, sampling, AccessRules(token)), bound) as address,
            page_at(chromium, address + link, **options) as page,
        ):
            wait_for(page, "document.getElementById('models').children.length > 0")
            yield page
            asked = page.evaluate("performance.getEntriesByType('resource').map(each => each.name)")
            assert asked
            assert [url for url in asked if not url.startswith((address, "data:"))] == []

    return open_page


def wait_for(page, expression):
    """Return once ``expression`` is true; asked from here, as the page lets no text be evaluated in it."""
    deadline = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"not within 60 s: {expression}"
        page.wait_for_timeout(20)


def texts_of(page):
    return page.eval_on_selector_all(".reply .text", "found => found.map(each => each.textContent)")


def wait_for_end(page, count=1):
    wait_for(page, f"document.querySelectorAll('.reply:not(.busy) .about').length >= {count}")
    wait_for(page, "document.querySelectorAll('.busy').length === 0")


def test_a_reply_streams(opened):
    """The reply grows while it is generated, and at temperature 0 it is the text of ``generate`` in the end."""
    paced = Paced(20)
    used = chat_model(paced)
    with opened(used) as page:
        page.keyboard.type("to be ")
        page.keyboard.press("Enter")
        wait_for(page, "document.querySelector('.reply .text')?.textContent.length > 8")
        (early,) = texts_of(page)
        assert page.is_visible("#stop")
        paced.allow()
        wait_for_end(page)
        (whole,) = texts_of(page)
        about = page.text_content(".about")
    expected = generate(used.trained.trainable, MemoryTokenizer(), "to be ", Sampling(60, 0.0))
    assert whole == expected
    assert expected.startswith(early)
    assert len(early) < len(whole)
    assert "60 tokens" in about
    assert "maximum length" in about


def test_escape_stops_all_replies(opened):
    """Esc ends the replies at their next tokens, and the page takes the next text."""
    paced = [Paced(20), Paced(20)]
    with opened(
        *(chat_model(each, f"m{number}") for number, each in enumerate(paced)), sampling=Sampling(5000)
    ) as page:
        page.keyboard.type("a")
        page.keyboard.press("Enter")
        wait_for(page, "[...document.querySelectorAll('.text')].every(each => each.textContent.length > 3)")
        page.keyboard.press("Escape")
        wait_for_end(page, 2)
        assert page.locator(".about", has_text="stopped").count() == 2
        for each in paced:
            while not each.ended.wait(0.02) and each.told < 3000:  # until the server hears that the browser left
                each.allow(1)
        assert max(each.told for each in paced) < 3000
        assert page.is_visible("#send")


def test_several_models_reply_side_by_side(opened):
    """Each model has a column with its name, beside the others on a wide screen and below them on a phone."""
    models = [chat_model(Says(text), name) for name, text in (("first", "one"), ("second", "two"))]
    boxes = {}
    for width in (1200, 390):
        with opened(*models, viewport={"width": width, "height": 800}) as page:
            page.keyboard.type("x")
            page.keyboard.press("Enter")
            wait_for_end(page, 2)
            assert texts_of(page) == ["xone", "xtwo"]
            assert page.locator(".name").all_text_contents() == ["first", "second"]
            boxes[width] = [each.bounding_box() for each in page.locator(".reply").all()]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert boxes[1200][0]["y"] == boxes[1200][1]["y"]
    assert boxes[390][0]["y"] < boxes[390][1]["y"]


def test_text_is_never_html(opened):
    """Markup in names, prompts, replies and errors is shown as text, and no script of it runs."""
    template = KnownTemplate()
    models = [chat_model(Says(HOSTILE), HOSTILE), chat_model(Says(HOSTILE), "b", TemplatedTokenizer(template))]
    with opened(*models, sampling=Sampling(200)) as page:
        page.fill("#prompt", HOSTILE)
        page.keyboard.press("Enter")
        wait_for_end(page, 2)
        assert texts_of(page) == [HOSTILE + HOSTILE, HOSTILE]
        assert page.text_content(".asked") == HOSTILE
        assert page.locator("img, #turns script").count() == 0
        assert "taken" not in page.title().replace(HOSTILE, "")


def test_a_conversation_is_remembered_and_begun_anew(opened):
    """With a chat template the model gets the messages so far and the system message; New forgets them."""
    template = KnownTemplate()
    with opened(chat_model(Says("yes"), "a", TemplatedTokenizer(template))) as page:
        assert "chat template" in page.text_content("#welcome")
        page.click("summary")
        page.fill("#system", "be brief")
        for number, text in enumerate(("one", "two"), 1):
            page.fill("#prompt", text)
            page.press("#prompt", "Enter")
            wait_for_end(page, number)
        page.click("#new")
        assert page.locator(".turn").count() == 0
        page.fill("#system", "")
        page.fill("#prompt", "three")
        page.press("#prompt", "Enter")
        wait_for_end(page)
    assert template.seen[-3:] == [
        [("system", "be brief"), ("user", "one")],
        [("system", "be brief"), ("user", "one"), ("assistant", "yes"), ("user", "two")],
        [("user", "three")],
    ]


def test_the_page_says_how_it_continues_and_offers_plain_text(opened):
    """Beside each model stands whether it converses; plain text can be chosen where there is a template."""
    template = KnownTemplate()
    with opened(chat_model(Says("!"), "a", TemplatedTokenizer(template)), chat_model(Says("?"), "b")) as page:
        assert page.locator("#models li").all_text_contents() == [
            "a · conversation (chat template)",
            "b · plain text (continuation)",
        ]
        page.click("summary")
        page.check("[value=plain]")
        assert "a · plain text (continuation)" in page.locator("#models li").all_text_contents()
        page.fill("#prompt", "x")
        page.press("#prompt", "Enter")
        wait_for_end(page, 2)
        assert texts_of(page) == ["x!", "x?"]
    assert template.seen == []


def test_plain_text_goes_on(opened):
    """After the maximum length, a click continues the text with what was written."""
    used = chat_model()
    with opened(used, sampling=Sampling(5, 0.0)) as page:
        page.keyboard.type("ab")
        page.keyboard.press("Enter")
        wait_for_end(page)
        page.click("text=Go on")
        wait_for_end(page)
        page.wait_for_selector("text=Go on")
        (text,) = texts_of(page)
    first = generate(used.trained.trainable, MemoryTokenizer(), "ab", Sampling(5, 0.0))
    assert text == generate(used.trained.trainable, MemoryTokenizer(), first, Sampling(5, 0.0))


def test_the_keyboard_and_settings(opened):
    """Shift+Enter begins a line, settings are sent, and a value that is none keeps the text from being sent."""
    with opened(chat_model(Says("long reply"))) as page:
        page.keyboard.type("a")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("b")
        assert page.input_value("#prompt") == "a\nb"
        page.click("summary")
        page.fill("#max_new_tokens", "0")
        page.press("#prompt", "Enter")
        assert page.locator(".turn").count() == 0
        page.fill("#max_new_tokens", "4")
        page.press("#prompt", "Enter")
        wait_for_end(page)
        assert texts_of(page) == ["a\nblong"]


def test_the_link_with_the_token_opens_the_page(opened):
    """The link with a token opens the page, without the token in the address afterwards, and replies come."""
    with opened(chat_model(Says("yes")), token="correct horse battery") as page:
        assert "token" not in page.url
        page.keyboard.type("x")
        page.keyboard.press("Enter")
        wait_for_end(page)
        assert texts_of(page) == ["xyes"]
