"""Generates tokens with a key-value cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor


class CachedForward(Protocol):
    """A network whose forward accepts the keys and values of earlier tokens and returns them with the new ones."""

    def __call__(self, input_ids: Tensor, position_ids: Tensor, *, use_cache: bool, past_key_values: Any) -> Any:
        """Return logits (rows, length, vocabulary) and the ``past_key_values`` of the next call."""


class Streamer(Protocol):
    """A streamer in the sense of transformers."""

    def put(self, tokens: Tensor) -> None:
        """Receive the prompt in the first call, later new tokens, int64 (rows, length)."""


@torch.no_grad()
def generate(
    network: CachedForward,
    input_ids: Tensor,
    *,
    max_new_tokens: int,
    eos_token_id: int,
    pad_token_id: int,
    do_sample: bool = False,
    attention_mask: Tensor | None = None,
    streamer: Streamer | None = None,
    **sampling: float,
) -> Tensor:
    """Return ``input_ids``, int64 (rows, length), with new tokens until each row ends or has ``max_new_tokens``.

    A row that ended is filled with ``pad_token_id``. Draws are those of transformers for the same logits and state of
    torch's generator; ``sampling`` are the options of ``draw``. ``streamer`` gets the prompt, and new tokens as
    they come. Raises ``ConfigurationError`` for rows with padding.
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        msg = "prompts of different lengths cannot be continued together: generate for one at a time"
        raise ConfigurationError(msg)
    ids, new, kept = input_ids, input_ids, None
    if streamer is not None:
        streamer.put(ids)
    has_ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(max_new_tokens):
        positions = torch.arange(ids.shape[1] - new.shape[1], ids.shape[1], device=ids.device).expand_as(new)
        logits, kept = network(new, positions, use_cache=True, past_key_values=kept)
        last = logits[:, -1].float()
        chosen = draw(last, **sampling) if do_sample else last.argmax(dim=-1)
        new = chosen.masked_fill(has_ended, pad_token_id)[:, None]
        ids = torch.cat((ids, new), dim=1)
        if streamer is not None:
            streamer.put(new.cpu())
        has_ended |= chosen == eos_token_id
        if bool(has_ended.all()):
            break
    return ids


def draw(logits: Tensor, *, temperature: float = 1.0, top_k: float = 0, top_p: float = 1.0) -> Tensor:
    """Return one id per row, int64 (rows,), drawn by ``logits``, fp32 (rows, vocabulary).

    Only the ``top_k`` likeliest (0: all) are eligible, and of these the fewest whose probabilities reach ``top_p``
    (Holtzman et al., 2020).
    """
    logits = logits / temperature
    if top_k:
        least = logits.topk(min(int(top_k), logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        rising, places = logits.sort(dim=-1)
        is_surplus = rising.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
        is_surplus[:, -1] = False
        logits = logits.masked_fill(is_surplus.scatter(1, places, is_surplus), -torch.inf)
    return torch.multinomial(logits.softmax(dim=-1), num_samples=1).squeeze(1)
