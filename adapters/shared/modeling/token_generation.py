"""Generates token ids after a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from holdfast.domain.training.text_generation import Sampling


def new_tokens(
    network: PreTrainedModel,
    prompt: Sequence[int],
    sampling: Sampling,
    end_of_text: int,
    tell: Callable[[int], object],
) -> Sequence[int]:
    """Return the ids after ``prompt`` up to ``end_of_text``, which is left out; ``tell`` receives each one at once.

    The random state of the process and the mode of ``network`` (training) stay as they were.
    """
    ids = torch.tensor([list(prompt)], device=network.device)
    chosen: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        chosen = {"do_sample": True, "temperature": sampling.temperature}
        chosen |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
    network = network.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(sampling.seed)
            out = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=end_of_text,
                pad_token_id=end_of_text,
                streamer=_Streamer(tell, end_of_text),
                **chosen,
            )
    finally:
        network.train()
    new: list[int] = out[0, ids.shape[1] :].tolist()
    return new[: new.index(end_of_text)] if end_of_text in new else new


@final
class _Streamer:
    """Passes on new ids, as transformers calls it: first with the prompt, then with each token, at last ``end``."""

    def __init__(self, tell: Callable[[int], object], end_of_text: int) -> None:
        self._tell = tell
        self._end_of_text = end_of_text
        self._has_prompt = False
        self._has_ended = False

    def put(self, tokens: Tensor) -> None:
        """Pass ``tokens``, of one row, on unless they are the prompt or come after the end of the text."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        for token in tokens.flatten().tolist():
            self._has_ended = self._has_ended or token == self._end_of_text
            if not self._has_ended:
                self._tell(token)

    def end(self) -> None:
        """Do nothing."""
