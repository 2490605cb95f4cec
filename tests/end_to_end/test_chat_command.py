"""The command chat, on a page and in the terminal."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec

import pytest

from holdfast.bootstrap.operations.chat_models import ChatRequest, open_chat_models
from holdfast.bootstrap.operations.named_checkpoint import Choice
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.text_generation import Sampling
from tests.support.asgi import ask
from tests.support.command_line import corpus, run_here, start, tiny

GREEDY = ("--temperature", "0", "--max-new-tokens", "24")
needs_page = pytest.mark.skipif(find_spec("uvicorn") is None, reason="uvicorn comes with the extra `page`")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a finished run and checkpoints of two steps."""
    folder = tmp_path_factory.mktemp("home")
    more = ["run.budget.steps=4", "state_store.every=2", "evaluation.every=0", "evaluation.at_start=false"]
    process = run_here("train", *tiny(corpus(folder)), *more, cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder


def generated(home, prompt, *more):
    process = run_here("generate", "runs/default", "--prompt", prompt, *GREEDY, *more, cwd=home)
    assert process.returncode == 0, process.stderr
    return process.stdout


class Page:
    """The command in a process of its own, with the address that it prints; it is ended by Ctrl-C."""

    def __init__(self, home, *arguments):
        self.process = start("chat", *arguments, "--port", "0", cwd=home)
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.match(r"page: (http://\S+?/)(\?token=(\S+))? ", line):
                self.address, self.token = found[1], found[3]
                return
        raise AssertionError(self.process.communicate())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)

    def open(self, path, body=None, **headers):
        """Return the answer, to be read."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"x-holdfast": "1", **headers})
        return urllib.request.urlopen(request, timeout=60)

    def ask(self, path, body=None, **headers):
        """Return the lines of the answer."""
        with self.open(path, body, **headers) as answer:
            return [json.loads(line) for line in answer]


@needs_page
@pytest.mark.parametrize("temperature", ["0", "1.2"])
def test_checkpoints_that_reply_at_once_say_what_generate_says(home, temperature):
    """Side by side and at the same time, each checkpoint replies with the tokens and the text of ``generate``."""
    from holdfast.bootstrap.web.chat_app import chat_app
    from holdfast.bootstrap.web.serve import AccessRules

    models = open_chat_models([(home / "runs/default", Choice(step)) for step in (2, 4)], trusted={}, show=print)
    assert [model.name for model in models] == ["default, step 2", "default, step 4"]
    sampling = Sampling(max_new_tokens=24, temperature=float(temperature), seed=3)
    app = chat_app(models, sampling, AccessRules())

    async def ask_both():
        given = {"temperature": sampling.temperature, "max_new_tokens": 24, "seed": 3}
        bodies = [json.dumps({"model": number, "text": "the model ", "sampling": given}) for number in (0, 1)]
        return await asyncio.gather(*(ask(app, "/reply", body=body.encode()) for body in bodies))

    for answer, step, model in zip(asyncio.run(ask_both()), (2, 4), models, strict=True):
        events = [json.loads(line) for line in answer.body.splitlines()]
        ids = [event["id"] for event in events if event.get("id") is not None]
        prompt, tokenizer = model.prompt_of(ChatRequest(sampling, "the model ")), model.trained.tokenizer
        assert ids == model.trained.trainable.generate(prompt.ids, sampling, end_of_text=tokenizer.end_of_text)
        text = "the model " + "".join(event.get("text", "") for event in events)
        more = ("--temperature", temperature, "--seed", "3", "--max-new-tokens", "24", "--step", str(step))
        assert f"{text}\n" == run_here("generate", "runs/default", "--prompt", "the model ", *more, cwd=home).stdout


@pytest.mark.slow
@needs_page
def test_the_page_is_for_who_has_the_token_until_ctrl_c(home):
    """The printed token opens the page of the checkpoints, and Ctrl-C ends the command in the middle of a reply."""
    with Page(home, "runs/default", "--step", "2,4", "--token-from", "new", *GREEDY) as page:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            page.ask("models")
        (about,) = page.ask("models", authorization=f"Bearer {page.token}")
        assert [each["name"] for each in about["models"]] == ["default, step 2", "default, step 4"]
        assert about["sampling"]["temperature"] == 0
        body = {"model": 0, "text": "a", "sampling": {"max_new_tokens": 2**31 - 1, "top_k": 1}}
        with page.open("reply", body, authorization=f"Bearer {page.token}") as answer:
            assert json.loads(answer.readline())["kind"] == "start"
            page.process.send_signal(signal.SIGINT)
            _, errors = page.process.communicate(timeout=60)
        assert page.process.returncode == 0
        assert "Traceback" not in errors
    assert ["default, step 2:" in page.lines[0], "plain continuation" in page.lines[0]] == [True, True]


def test_a_checkpoint_that_does_not_fit_is_refused(home):
    """Weights larger than the memory that is left are refused before they are read, with both sizes."""
    run, rooms = home / "runs/default", iter([1 << 40, 10_000])
    pattern = (
        r"needs [\d.]+ KiB for its weights, but 9\.8 KiB of memory are left beside 1 other: name fewer checkpoints"
    )
    chosen = [(run, Choice(2)), (run, Choice(4))]
    with pytest.raises(ConfigurationError, match=pattern):
        open_chat_models(chosen, trusted={}, show=print, free_memory=lambda: next(rooms))


def test_the_terminal_says_what_generate_says(home, monkeypatch):
    """Each line of standard input is answered with the text that ``generate`` prints."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("the model \nin small\n"))
    process = run_here("chat", "runs/default", "--terminal", *GREEDY, cwd=home)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == generated(home, "the model ") + generated(home, "in small")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["runs/other"], 2, "there is no folder runs/other: name a run folder, such as runs/default"),
        (["runs/default", "runs/other"], 2, "there is no folder runs/other"),
        (["runs"], 4, "runs is not a run folder: it has no run.json"),
        (["runs/default", "--step", "3"], 4, "runs/default holds no checkpoint of step 3: it holds 2, 4"),
    ],
)
def test_a_wrong_run_is_one_sentence(home, arguments, code, said):
    """A folder that is none, or no run, and a step that was not saved are told in a sentence."""
    process = run_here("chat", *arguments, "--terminal", cwd=home)
    assert (process.returncode, process.stdout) == (code, "")
    assert process.stderr.startswith(f"error: {said}")
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "other machines can reach 0.0.0.0: add --token-from"),
        (["--token-from", "secret"], "--token-from is new, env:NAME or file:PATH"),
    ],
)
def test_a_page_for_others_needs_a_token(home, arguments, said):
    """Before a model is opened, an address that others can reach is refused without a token."""
    pytest.importorskip("uvicorn", reason="uvicorn comes with the extra `page`")
    process = run_here("chat", "runs/default", *arguments, cwd=home)
    assert (process.returncode, process.stdout) == (2, "")
    assert said in process.stderr


def test_without_its_packages_the_page_names_the_extra(home, monkeypatch):
    """Without the extra the page is one sentence with the command that installs it."""
    monkeypatch.setitem(sys.modules, "starlette", None)
    process = run_here("chat", "runs/default", cwd=home)
    assert process.returncode == 2
    assert 'needs another package: pip install "holdfast-lm[page]"' in process.stderr


def test_the_use_of_a_checkpoint_is_in_the_audit(home, monkeypatch):
    """The audit of a run says which checkpoint was opened to talk to it."""
    audit = home / "runs/default/audit.jsonl"
    before = len(audit.read_text().splitlines())
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run_here("chat", "runs/default", "--terminal", cwd=home).returncode == 0
    (line,) = audit.read_text().splitlines()[before:]
    assert json.loads(line)["event"] == "TextGenerated"
