"""Small models to talk to, whose replies are known."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.shared.toy_bigram import BigramModel
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap.operations.chat_models import ChatModel
from holdfast.domain.errors import DataError
from holdfast.ports.forwarding.optimizer import ForwardingTrainable
from holdfast.ports.tokenizer import ChatTemplate, HasChatTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.domain.training.conversation_record import ChatMessage, Conversation
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.tokenizer import SupervisedIds, TemplateChoice

LOGITS = np.random.default_rng(3).normal(size=(257, 257))
LOGITS[:, 256] = -50.0  # it does not end by itself


class Paced(ForwardingTrainable):
    """A trainable that tells ``allowed`` tokens and waits until more are allowed; ``told`` counts them.

    ``ended`` is set at the end of each stream, also of one that is broken off.
    """

    def __init__(self, allowed: float = math.inf) -> None:
        super().__init__(MemoryOptimizer().prepare(BigramModel(LOGITS.copy())))
        self.told = 0
        self.ended = threading.Event()
        self._allowed = allowed
        self._change = threading.Condition()

    def allow(self, more: float = math.inf) -> None:
        """Let ``more`` tokens come."""
        with self._change:
            self._allowed += more
            self._change.notify_all()

    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int, tell: Callable[[int], object]
    ) -> None:
        try:
            for token in self.generate(prompt, sampling, end_of_text=end_of_text):
                with self._change:
                    assert self._change.wait_for(lambda: self.told < self._allowed, 60), "no more tokens are allowed"
                    self.told += 1
                tell(token)
        finally:
            self.ended.set()


class Says(Paced):
    """A trainable that says the same text to everything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        return list(self.text.encode())[: sampling.max_new_tokens]


class KnownTemplate(ChatTemplate):
    """A chat template that encodes the last message, and keeps all that it was given."""

    def __init__(self) -> None:
        self.seen: list[list[tuple[str, str]]] = []
        self.refuses = False

    @property
    def ends(self) -> frozenset[int]:
        return frozenset({256})

    def encode(self, messages: Sequence[ChatMessage]) -> Sequence[int]:
        if self.refuses:
            self.refuses = False
            msg = "no such message"
            raise DataError(msg)
        self.seen.append([(str(message.role), message.text) for message in messages])
        return list(messages[-1].text.encode())

    def encode_training(
        self, conversations: Sequence[Conversation], train_on: str = "all_assistant"
    ) -> Sequence[Sequence[SupervisedIds]]:
        raise NotImplementedError

    def fingerprint(self) -> str:
        return "known"


class TemplatedTokenizer(HasChatTemplate):
    """A tokenizer of bytes that comes with ``template``."""

    def __init__(self, template: KnownTemplate) -> None:
        self.inner = MemoryTokenizer()
        self.template = template

    @property
    def chat_template(self) -> KnownTemplate:
        return self.template

    def with_template(self, choice: TemplateChoice) -> TemplatedTokenizer:
        return self

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def chat_model(trainable: Trainable | None = None, name: str = "first, step 3", tokenizer: object = None) -> ChatModel:
    """Return a model that replies by ``trainable``."""
    parts = {"trainable": trainable or Paced(), "tokenizer": tokenizer or MemoryTokenizer(), "location": "runs/first"}
    return ChatModel(name, SimpleNamespace(**parts))
