"""Conversations with trained models in the terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, final

from holdfast.application.training.generate import ReplyEnd
from holdfast.bootstrap.cli.arguments import temperature, whole
from holdfast.bootstrap.operations.chat_models import ChatRequest
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.bootstrap.process.printing import as_error, visible
from holdfast.domain.errors import TrainingError
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from holdfast.bootstrap.operations.chat_models import ChatModel
    from holdfast.domain.training.text_generation import Sampling

_COMMANDS = """\
/new               begin a new conversation
/temperature T     0 always takes the most likely token
/tokens N          generate at most N tokens
/seed S            another seed gives another text
/quit              end (or Ctrl-D)
Ctrl-C stops a reply. A line that ends with \\ is continued on the next line."""


@final
class ChatTerminal:
    """Asks for lines and prints the replies of ``models``, one after another.

    Each model has its own conversation, as far as its tokenizer has a chat template and ``is_plain`` is false;
    otherwise it continues each text by itself.
    """

    def __init__(self, models: Sequence[ChatModel], sampling: Sampling, *, is_plain: bool = False) -> None:
        self._models = models
        self._sampling = sampling
        self._conversations: list[list[ChatMessage] | None] = [
            [] if model.has_template and not is_plain else None for model in models
        ]
        self._is_interactive = sys.stdin.isatty() and sys.stdout.isatty()

    def run(self, lines: TextIO) -> int:
        """Answer each of the ``lines`` until they end; return the exit code. Ctrl-C at the prompt interrupts."""
        self._greet()
        while (text := self._next(lines)) is not None:
            if text.startswith("/") and self._is_interactive:
                if text.strip() == "/quit":
                    break
                self._obey(text)
            elif text or None in self._conversations:
                self._answer(text)
        if self._is_interactive:
            print()
        return ExitCode.FINISHED

    def _greet(self) -> None:
        if not self._is_interactive:
            return
        with contextlib.suppress(ImportError):  # arrow keys and a history of lines, where Python has it
            import readline  # noqa: F401
        for model, conversation in zip(self._models, self._conversations, strict=True):
            how = "continues your text" if conversation is None else "chat template of its tokenizer"
            print(f"{model.name}: {how}")
        print("/help lists commands, Ctrl-D ends\n")

    def _next(self, lines: TextIO) -> str | None:
        """Return the next text, of several lines if all but the last end with a backslash; None at the end."""
        parts: list[str] = []
        while True:
            line = self._line("> " if not parts else ". ", lines)
            if not line:
                return "\n".join(parts) if parts else None
            parts.append(line.rstrip("\n"))
            if not parts[-1].endswith("\\"):
                return "\n".join(parts)
            parts[-1] = parts[-1][:-1]

    def _line(self, prompt: str, lines: TextIO) -> str:
        """Return the next line with its end, empty at the end of ``lines``; a terminal edits it after ``prompt``."""
        if not self._is_interactive:
            return lines.readline()
        try:
            return input(prompt) + "\n"
        except EOFError:
            return ""
        except KeyboardInterrupt:
            print()
            raise

    def _obey(self, text: str) -> None:
        name, _, value = map(str.strip, text.strip().partition(" "))
        if name == "/new":
            self._conversations = [None if each is None else [] for each in self._conversations]
            print("a new conversation")
            return
        try:
            if name == "/temperature":
                self._sampling = replace(self._sampling, temperature=temperature(value))
            elif name == "/tokens":
                self._sampling = replace(self._sampling, max_new_tokens=whole(1)(value))
            elif name == "/seed":
                self._sampling = replace(self._sampling, seed=whole(0)(value))
            else:
                print("" if name == "/help" else f"there is no command {visible(name)}\n", end="")
                print(_COMMANDS)
                return
        except ValueError:
            print(f"{name} does not take {visible(value)!r}" if value else f"{name} needs a number")
            print(_COMMANDS)
            return
        print(f"{name[1:]} is now {value}")

    def _answer(self, text: str) -> None:
        """Print the reply of each model to ``text``; Ctrl-C stops them."""
        for number, model in enumerate(self._models):
            if len(self._models) > 1:
                print(f"--- {model.name} ".ljust(min(shutil.get_terminal_size().columns, 80), "-"))
            try:
                self._reply(number, text)
            except KeyboardInterrupt:
                if not self._is_interactive:
                    raise
                print("\n(stopped)")
                return
            except TrainingError as error:
                print(as_error(f"error: {error}"), file=sys.stderr)

    def _reply(self, number: int, text: str) -> None:
        model, conversation = self._models[number], self._conversations[number]
        if conversation is None:
            request = ChatRequest(self._sampling, text=text)
        else:
            conversation.append(ChatMessage(MessageRole.USER, text))
            request = ChatRequest(self._sampling, messages=conversation)
        told: list[str] = []

        def show(_: int | None, piece: str) -> None:
            told.append(piece)
            print(visible(piece), end="", flush=True)

        try:
            prompt = model.prompt_of(request)
            if prompt.note is not None:
                print(prompt.note, file=sys.stderr)
            if conversation is None:
                show(None, text)
            end = model.reply(prompt, show, lambda: False)
        except BaseException:
            if conversation is not None and not told:
                conversation.pop()  # a question without a reply is none that a chat template accepts
            elif conversation is not None:
                conversation.append(ChatMessage(MessageRole.ASSISTANT, "".join(told)))
            raise
        if conversation is not None:
            conversation.append(ChatMessage(MessageRole.ASSISTANT, "".join(told)))
        print(" ..." if end is ReplyEnd.LENGTH and self._is_interactive else "")
