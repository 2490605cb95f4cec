"""Conversations in the terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest

from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.shared.toy_bigram import BigramModel
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.training.generate import generate
from holdfast.bootstrap.cli.chat_terminal import ChatTerminal
from holdfast.domain.training.text_generation import Sampling
from tests.support.chat_models import KnownTemplate, TemplatedTokenizer, chat_model

GREEDY = Sampling(12, 0.0)


def counting(step=1):
    """Return a trainable that continues a byte with the byte so many steps further, from 97 to 122."""
    logits = np.full((257, 257), -9.0)
    for here in range(257):
        logits[here, 97 + (here - 97 + step) % 26 if 97 <= here < 123 else 97] = 9.0
    return MemoryOptimizer().prepare(BigramModel(logits))


def model(name="a", step=1, template=None):
    return chat_model(counting(step), name, template and TemplatedTokenizer(template))


def talk(*models, lines, sampling=GREEDY, plain=False):
    return ChatTerminal(models, sampling, is_plain=plain).run(io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_line_is_continued(capsys):
    """A line is answered with itself and its continuation, as by ``generate``."""
    used = model()
    assert talk(used, lines=["x"]) == 0
    assert capsys.readouterr().out == generate(used.trained.trainable, MemoryTokenizer(), "x", GREEDY) + "\n"


def test_several_models_answer_one_after_another(capsys):
    """Each reply stands under the name of its model."""
    talk(model("one"), model("two", 2), lines=["a"], sampling=Sampling(3, 0.0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("--- one ---")
    assert lines[2].startswith("--- two ---")
    assert lines[1::2] == ["abcd", "aceg"]


def test_a_line_that_ends_with_a_backslash_goes_on(capsys):
    """Lines are joined where a backslash ends them."""
    talk(model(), lines=["x\\", "y\\", "z"], sampling=Sampling(1, 0.0))
    assert capsys.readouterr().out == "x\ny\nza\n"


def test_a_conversation_has_a_memory():
    """With a chat template the model reads the messages and its replies so far."""
    template = KnownTemplate()
    talk(model(template=template), lines=["a", "", "b"], sampling=Sampling(2, 0.0))
    assert template.seen == [[("user", "a")], [("user", "a"), ("assistant", "bc"), ("user", "b")]]


def test_plain_continuation_can_be_asked_for(capsys):
    """With ``is_plain`` the template is not used."""
    template = KnownTemplate()
    talk(model(template=template), lines=["a"], sampling=Sampling(2, 0.0), plain=True)
    assert (template.seen, capsys.readouterr().out) == ([], "abc\n")


def test_a_message_that_the_template_refuses_is_forgotten(capsys):
    """The error is one sentence, and the conversation goes on without the message."""
    template = KnownTemplate()
    template.refuses = True
    assert talk(model(template=template), lines=["a", "b"], sampling=Sampling(1, 0.0)) == 0
    assert capsys.readouterr().err == "error: no such message\n"
    assert template.seen == [[("user", "b")]]


class Screen:
    """A terminal with a person who types ``lines``; an error among them is raised, as Ctrl-C does."""

    def __init__(self, monkeypatch, *lines):
        self.lines = iter(lines)
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", self.answer)

    def answer(self, _):
        line = next(self.lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line


def test_settings_change_in_the_conversation(monkeypatch, capsys):
    """Commands change the sampling, a wrong or too large number shows them all, and /quit ends."""
    Screen(
        monkeypatch, "/tokens 2", "a", "/tokens none", "/seed 3", f"/seed {2**64}", "/temperature 0.5",
        "/temperature -1", "/quit", "b",
    )  # fmt: skip
    terminal = ChatTerminal([model()], GREEDY)
    assert terminal.run(io.StringIO()) == 0
    out = capsys.readouterr().out
    assert "abc ...\n" in out
    assert out.count("/quit              end") == 3
    assert terminal._sampling == Sampling(2, 0.5, seed=3)


def test_a_command_is_answered(monkeypatch, capsys):
    """A command that changes a setting confirms it, and one that is unknown or has a wrong value is named."""
    Screen(monkeypatch, "/seed  3", "/seed x", "/seed", "/sed 3", "/help")
    ChatTerminal([model()], GREEDY).run(io.StringIO())
    out = capsys.readouterr().out
    answers = [line for line in out.splitlines() if line.startswith(("seed", "/seed ", "there"))]
    told = ["seed is now 3", "/seed does not take 'x'", "/seed needs a number", "there is no command /sed"]
    assert [line for line in answers if "another seed" not in line] == told
    assert out.count("/quit              end") == 4


def test_a_new_conversation_forgets(monkeypatch):
    """After /new the model reads nothing of before."""
    Screen(monkeypatch, "a", "/new", "b")
    template = KnownTemplate()
    ChatTerminal([model(template=template)], Sampling(1, 0.0)).run(io.StringIO())
    assert template.seen == [[("user", "a")], [("user", "b")]]


def test_ctrl_c_stops_a_reply_and_at_the_prompt_the_command(monkeypatch, capsys):
    """In a reply it stops that, and what was said stays in the conversation; at the prompt it interrupts."""
    template, used = KnownTemplate(), []
    talker = model(template=template)
    stream = talker.trained.trainable.stream

    def interrupted(prompt, sampling, *, end_of_text, tell):
        def told(token):
            tell(token)
            used.append(token)
            if len(used) == 2:
                raise KeyboardInterrupt

        stream(prompt, sampling, end_of_text=end_of_text, tell=told)

    monkeypatch.setattr(talker.trained.trainable, "stream", interrupted)
    Screen(monkeypatch, "a", "b", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ChatTerminal([talker], GREEDY).run(io.StringIO())
    assert "bc\n(stopped)" in capsys.readouterr().out
    assert template.seen[1] == [("user", "a"), ("assistant", "bc"), ("user", "b")]
