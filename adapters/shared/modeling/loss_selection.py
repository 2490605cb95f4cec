"""Selects an implementation of the loss by trying it on the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import linear

from holdfast.adapters.shared.modeling.attention import packed_arguments
from holdfast.adapters.shared.modeling.document_isolation import as_evaluated, random_tokens
from holdfast.domain.built_in import LOSSES
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel

_TOKENS = 6
_LARGE = 1e3  # logits so large that soft caps, 30 in Gemma 2, have an effect
_CLOSE = 1e-4  # of the largest logit


def choose_loss(
    model: CausalLanguageModel, wanted: str = "auto", *, own_loss: Callable[[Tensor, Tensor], Tensor] | None = None
) -> None:
    """Set ``model.loss`` to the implementation for ``wanted``, and ``model.own_loss``.

    auto is chunked if that gives the loss of all logits, else plain, with a line in ``model.notes``. A name that is not
    built in comes with ``own_loss``, which takes fp32 logits (tokens, vocabulary) and labels int64 (tokens,), and is
    computed in chunks where possible. Call it again after layers were replaced. Raises ``ConfigurationError`` for an
    unknown name, and for chunked or liger with a model that does not support them.
    """
    if wanted not in LOSSES and own_loss is None:
        msg = f"model.loss is {wanted}, which is not a loss: it must be one of {', '.join(LOSSES)}"
        raise ConfigurationError(msg)
    model.own_loss = own_loss
    reason = None if wanted == "plain" else why_not_chunked(model.probed)
    if reason is None:
        model.loss = "plain" if wanted == "plain" else "liger" if wanted == "liger" else "chunked"
        return
    if wanted in ("chunked", "liger"):
        msg = f"model.loss is {wanted}, but {reason}: set model.loss=auto"
        raise ConfigurationError(msg)
    model.loss = "plain"
    note = f"the loss holds all logits at once: {reason}"
    model.notes = (*(each for each in model.notes if each != note), note)


def why_not_chunked(network: Any) -> str | None:
    """Return why the logits of ``network`` are not its last hidden states times a matrix, None if they are.

    Runs the network twice on a few tokens, on its own device; gradients and random state do not change. The second time
    the head gets hidden states that make large logits, so that changes of logits after it (soft caps, scales) show in a
    model with fresh weights too.
    """
    name = type(network).__name__
    head = network.get_output_embeddings()
    if type(head) is not nn.Linear or not isinstance(getattr(network, "base_model", None), nn.Module):
        return f"{name} has no plain linear head"
    with as_evaluated(network):
        ids = random_tokens(_TOKENS, head.out_features)[None].to(head.weight.device)
        arguments = packed_arguments(network, torch.arange(_TOKENS, device=ids.device)[None])
        hidden = network.base_model(input_ids=ids, **arguments).last_hidden_state
        scale = _LARGE / float(linear(hidden, head.weight, head.bias).abs().max().clamp(min=1e-6))
        seen: list[Tensor] = []

        def enlarge(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            seen.append(inputs[0])
            return (inputs[0] * scale,)

        handle = head.register_forward_pre_hook(enlarge)
        try:
            logits = network(input_ids=ids, **arguments).logits
        finally:
            handle.remove()
        expected = linear(hidden * scale, head.weight, head.bias)
    if len(seen) != 1 or seen[0].shape != hidden.shape or not _are_close(seen[0], hidden):
        return f"{name} changes the hidden states before its head"
    if logits.shape != expected.shape or not _are_close(logits, expected):
        return f"{name} changes the logits after its head, for example by a soft cap or a scale"
    return None


def _are_close(here: Tensor, there: Tensor) -> bool:
    here, there = here.float(), there.float()
    return bool((here - there).abs().max() <= _CLOSE * there.abs().max())
