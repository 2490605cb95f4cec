"""Continues a fixed list of prompts during a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from holdfast.application.training.generate import generate
from holdfast.domain.phase import show_nothing
from holdfast.domain.training.text_generation import GeneratedText

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.tokenizer import Tokenizer


@final
class PromptSampler:
    """Continues each of ``prompts``, the first with the seed of ``sampling`` and each later one with the next number.

    The same parameters give the same texts, and training is unchanged. All ranks of ``group`` generate together. In a
    run of one process an error ends the texts of this time, and ``report`` gets a sentence; on several ranks it is
    raised, as the others wait.
    """

    def __init__(
        self,
        trainable: Trainable,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        sampling: Sampling,
        group: ProcessGroup,
        *,
        report: Callable[[str], object] = lambda _: None,
        show: ShowPhase = show_nothing,
    ) -> None:
        self._trainable = trainable
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._sampling = sampling
        self._group = group
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
        text = generate(self._trainable, self._tokenizer, prompt, replace(self._sampling, seed=seed))
        return GeneratedText(prompt, text.removeprefix(prompt), seed)
