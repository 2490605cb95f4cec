"""Continues a fixed list of prompts during a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from holdfast.application.training.end_ids import end_of_turn
from holdfast.application.training.generate import generate
from holdfast.application.training.reply import ReplyEnd, chat_prompt, whole_reply
from holdfast.domain.phase import show_nothing
from holdfast.domain.training.conversation import ChatMessage, MessageRole
from holdfast.domain.training.text_generation import GeneratedText
from holdfast.ports.tokenizer import ShowsSpecialTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.tokenizer import ChatTemplate, Tokenizer


@final
class PromptSampler:
    """Continues each of ``prompts``, the first with the seed of ``sampling`` and each later one with the next number.

    The same parameters give the same texts, and training is unchanged. All ranks of ``group`` generate together. In a
    run of one process an error ends the texts of this time, and ``report`` gets a sentence; on several ranks it is
    raised, as the others wait. With a ``template`` each prompt is a message of the user, and its text the reply: both
    are as the model reads and writes them, with the special tokens of the template.
    """

    def __init__(
        self,
        trainable: Trainable,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        sampling: Sampling,
        group: ProcessGroup,
        *,
        template: ChatTemplate | None = None,
        report: Callable[[str], object] = lambda _: None,
        show: ShowPhase = show_nothing,
    ) -> None:
        self._trainable = trainable
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._sampling = sampling
        self._group = group
        self._template = template
        self._report = report
        self._show = show

    def run(self, *, should_stop: Callable[[], bool] = lambda: False) -> Sequence[GeneratedText]:
        """Return the continuations of the prompts, fewer if ``should_stop`` returned true before one of them."""
        texts: list[GeneratedText] = []
        try:
            for number, prompt in enumerate(self._prompts):
                if any(self._group.sum([should_stop()])):
                    break
                self._show("writing samples", number / len(self._prompts))
                texts.append(self._continued(prompt, self._sampling.seed + number))
        except Exception as error:
            if self._group.size > 1:
                raise
            self._report(f"no sample of the prompt {prompt[:40]!r} can be written: {type(error).__name__}: {error}")
        finally:
            self._show("")
        return texts

    def _continued(self, prompt: str, seed: int) -> GeneratedText:
        if self._template is not None:
            return self._reply(self._template, prompt, replace(self._sampling, seed=seed))
        text = generate(self._trainable, self._tokenizer, prompt, replace(self._sampling, seed=seed))
        return GeneratedText(prompt, text.removeprefix(prompt), seed)

    def _reply(self, template: ChatTemplate, prompt: str, sampling: Sampling) -> GeneratedText:
        tokenizer = self._tokenizer
        asked = chat_prompt(self._trainable, template, [ChatMessage(MessageRole.USER, prompt)], sampling)
        text, end = whole_reply(self._trainable, tokenizer, asked)
        shown = tokenizer.decode_all if isinstance(tokenizer, ShowsSpecialTokens) else tokenizer.decode
        ended = shown([end_of_turn(template.ends, tokenizer.end_of_text)])
        return GeneratedText(shown(asked.ids), text + ended if end is ReplyEnd.MODEL else text, sampling.seed)
