"""The settings that ``model.size`` stands for: shape, vocabulary, length of rows, batch, learning rate and budget."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.configs.error_messages import refuse
from holdfast.configs.settings_tree import Leaf, Tree, leaves_of, plant
from holdfast.domain.training.scaling_laws import (
    TOKENS_PER_PARAMETER,
    LlamaShape,
    best_batch_tokens,
    best_learning_rate,
    rows_of_batch,
    training_flops,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_WARMUP_SHARE = 100  # of the steps of the training: one for the warm-up
SIZES: Mapping[str, tuple[LlamaShape, int]] = MappingProxyType(
    {
        "10M": (LlamaShape(256, 704, 10, 4, 4, 8192, tie_word_embeddings=True), 512),
        "124M": (LlamaShape(768, 2048, 12, 12, 12, 50304, tie_word_embeddings=True), 1024),
        "350M": (LlamaShape(1024, 2736, 24, 16, 16, 50304, tie_word_embeddings=True), 1024),
        "1B": (LlamaShape(2048, 8192, 16, 32, 8, 65536, tie_word_embeddings=True), 2048),
        "3B": (LlamaShape(3072, 8192, 28, 24, 8, 65536, tie_word_embeddings=True), 2048),
        "8B": (LlamaShape(4096, 14336, 32, 32, 8, 128256, tie_word_embeddings=False), 4096),
    }
)
"""The shape and the length of a row of each size.

124M and 350M have the width, depth and heads of GPT-2 small and medium, 1B and 3B those of Llama 3.2, and 8B those of
Llama 3 (arXiv 2407.21783). 10M has the width of the smallest models of TinyStories (arXiv 2305.07759).
"""


def settings_of_size(tree: Tree) -> Tree:
    """Return the settings that the ``model.size`` of ``tree`` stands for, a layer below all others; empty without one.

    Settings of ``tree`` that take the place of one of them leave it out: a budget of the user, or epochs of the data,
    replace the budget of the size. Raises ``ConfigurationError`` if the model has another shape already. An unknown
    size is left to validation.
    """
    leaf = _leaf(tree, "model", "size")
    if leaf is None or leaf.value not in SIZES:
        return {}
    _check_is_free(tree, leaf)
    shape, length = SIZES[leaf.value]
    chosen = _leaf(tree, "data", "sequence_length")
    length = chosen.value if chosen is not None and type(chosen.value) is int and chosen.value > 0 else length
    return plant(_settings(tree, shape, length), f"model.size={leaf.value} ({leaf.origin})")


def _settings(tree: Tree, shape: LlamaShape, length: int) -> dict[str, Any]:
    tokens = TOKENS_PER_PARAMETER * shape.parameters
    flops = training_flops(shape, tokens, length)
    settings: dict[str, Any] = {
        "model": {
            "config": {
                "hidden_size": shape.hidden_size,
                "intermediate_size": shape.intermediate_size,
                "num_hidden_layers": shape.num_hidden_layers,
                "num_attention_heads": shape.num_attention_heads,
                "num_key_value_heads": shape.num_key_value_heads,
                "tie_word_embeddings": shape.tie_word_embeddings,
                "max_position_embeddings": max(2048, length),
            }
        },
        "data": {"sequence_length": length},
        "optimizer": {"learning_rate": best_learning_rate(flops)},
    }
    rows, others = rows_of_batch(best_batch_tokens(flops), length), _section(tree, "optimizer").keys()
    if not {"batch_size", "batch_tokens"} & others:
        settings["optimizer"]["batch_size"] = rows
        if "schedule" not in others:
            settings["optimizer"]["schedule"] = {"warmup_steps": tokens // (rows * length) // _WARMUP_SHARE}
    epochs = _leaf(tree, "data", "epochs")
    if "budget" not in _section(tree, "run") and (epochs is None or epochs.value is None):
        settings["run"] = {"budget": {"steps": None, "tokens": int(float(f"{tokens:.2g}"))}}
    if not {"kind", "path"} & _section(tree, "tokenizer").keys():
        settings["tokenizer"] = {"vocabulary_size": shape.vocabulary}
    return settings


def _check_is_free(tree: Tree, size: Leaf) -> None:
    for path, leaf in leaves_of({"model": _section(tree, "model")}):
        is_other = path == ("model", "path") or (path == ("model", "config", "model_type") and leaf.value != "llama")
        if is_other and leaf.value is not None:
            refuse(
                f"model.size ({size.origin}) is that of a new Llama, but {'.'.join(path)} ({leaf.origin}) chooses "
                "another model: keep one of them"
            )


def _section(tree: Tree, name: str) -> Tree:
    node = tree.get(name)
    return node if isinstance(node, dict) else {}


def _leaf(tree: Tree, section: str, key: str) -> Leaf | None:
    node = _section(tree, section).get(key)
    return node if isinstance(node, Leaf) else None
