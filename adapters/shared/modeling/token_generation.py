"""Generates token ids after a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from holdfast.adapters.shared.modeling.generation_settings import only_settings, sample_settings
from holdfast.adapters.shared.modeling.random_turns import RandomTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from holdfast.domain.training.text_generation import Sampling

_LEAST_TEMPERATURE = 1e-30  # logits divided by less are no floats, and at it the likeliest id has all probability


def new_tokens(
    network: PreTrainedModel,
    prompt: Sequence[int],
    sampling: Sampling,
    end_of_text: int,
    tell: Callable[[int], object],
) -> Sequence[int]:
    """Return the ids after ``prompt`` up to ``end_of_text``, which is left out; ``tell`` receives each id at once.

    At temperature 0 each id is the likeliest one; at others the network's own settings of samples count too.
    The random state of the process and the mode of ``network`` (training) stay as they were, also if ``tell`` raises.
    Threads that generate with different networks take turns after each token.
    """
    ids = torch.tensor([list(prompt)], device=network.device)
    chosen: dict[str, Any] = {"do_sample": False}
    own: Mapping[str, Any] = {}
    if sampling.temperature > 0:
        own = sample_settings(network)
        chosen = {"do_sample": True, "temperature": max(sampling.temperature, _LEAST_TEMPERATURE)}
        chosen |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
    network = network.eval()
    try:
        with only_settings(network, own), RandomTurn(sampling.seed, ids.device) as turn, torch.no_grad():
            out = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=end_of_text,
                pad_token_id=end_of_text,
                streamer=_Streamer(tell, end_of_text, turn),
                **chosen,
            )
    finally:
        network.train()
    new: list[int] = out[0, ids.shape[1] :].tolist()
    return new[: new.index(end_of_text)] if end_of_text in new else new


@final
class _Streamer:
    """Passes on new ids; transformers calls ``put`` with the prompt and then with each token, and ``end`` last."""

    def __init__(self, tell: Callable[[int], object], end_of_text: int, turn: RandomTurn) -> None:
        self._tell = tell
        self._turn = turn
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
        self._turn.pass_on()

    def end(self) -> None:
        """Do nothing."""
