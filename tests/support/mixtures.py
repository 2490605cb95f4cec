"""Tiny mixtures of experts of Hugging Face, and ways to break their balancing loss."""

from __future__ import annotations

from torch.nn.functional import softmax

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}
MIXTRAL = SIZES | {"model_type": "mixtral", "num_local_experts": 4}
MIXTURES = {
    "mixtral": MIXTRAL,
    "qwen2_moe": SIZES
    | {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_moe": SIZES | {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 24},
    "olmoe": SIZES | {"model_type": "olmoe", "num_experts": 8},
}
VOCABULARY, END_OF_TEXT = 257, 256


def mixture(config, **options):
    """Return the model that ``config`` describes, always the same."""
    factory = HuggingfaceModelFactory(config=config, **options)
    return factory.build(vocabulary_size=VOCABULARY, end_of_text=END_OF_TEXT, seed=0)


def report_probabilities(monkeypatch, router):
    """Make all routers of the class ``router`` report the softmax of their logits, as releases of transformers did."""
    forward = router.forward

    def forward_with_softmax(self, hidden):
        logits, *others = forward(self, hidden)
        return softmax(logits.float(), dim=-1), *others

    monkeypatch.setattr(router, "forward", forward_with_softmax)


def report_detached(monkeypatch, router):
    """Make all routers of the class ``router`` report logits that have no gradient."""
    forward = router.forward

    def forward_detached(self, hidden):
        logits, *others = forward(self, hidden)
        return logits.detach(), *others

    monkeypatch.setattr(router, "forward", forward_detached)


def lose_the_coefficient(monkeypatch, balance):
    """Make the class ``balance`` add its loss as it is, whatever its coefficient."""
    end = balance._end

    def end_without(self, *arguments):
        before = self.coefficient
        self.coefficient = 1.0 if before else 0.0
        try:
            return end(self, *arguments)
        finally:
            self.coefficient = before

    monkeypatch.setattr(balance, "_end", end_without)
