"""Positions in a config.json under the names of every version of transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from holdfast.adapters.shared.modeling.generation_settings import check_positions, config_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LAYERS = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 70_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
}
_BASES = {
    "full_attention": {"rope_type": "default", "rope_theta": 70_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
}
_LONG = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
_LONG_OF_EARLIER = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}


@pytest.mark.parametrize(
    ("kind", "rope", "expected"),
    [
        ("llama", {"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 5e5}),
        ("llama", _LLAMA3 | {"rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": _LLAMA3}),
        (
            "gpt_neox",
            {"rope_type": "default", "rope_theta": 7e4, "partial_rotary_factor": 0.5},
            {"rotary_emb_base": 7e4, "rotary_pct": 0.5},
        ),
        (
            "gemma3_text",
            _LAYERS,
            {
                "rope_theta": 7e4,
                "rope_local_base_freq": 2e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
        ("modernbert-decoder", _BASES, {"global_rope_theta": 7e4, "local_rope_theta": 2e4}),
        (
            "phi3",
            _LONG | {"rope_theta": 5e5, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 4096},
            {"rope_theta": 5e5, "partial_rotary_factor": 1.0, "rope_scaling": _LONG_OF_EARLIER},
        ),
        (
            "olmo2",
            {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 8.0}},
        ),
        (
            "olmo2",  # which transformers 4 does not know, and refuses
            _LLAMA3 | {"rope_theta": 5e5},
            {"rope_theta": 5e5, "rope_scaling": _LLAMA3},
        ),
    ],
)
def test_positions_have_their_earlier_names_too(kind: str, rope: dict[str, Any], expected: dict[str, Any]) -> None:
    """What transformers 5 calls rope_parameters also stands under the names that earlier versions read."""
    config = AutoConfig.for_model(kind, rope_parameters=json.loads(json.dumps(rope)), max_position_embeddings=512)
    text = config.to_json_string()

    written = json.loads(config_text(text))

    assert written == expected | json.loads(text)
    read = AutoConfig.for_model(**json.loads(json.dumps(written))).rope_parameters
    read.pop("type", None)  # beside rope_type
    assert read == config.rope_parameters
    check_positions(json.dumps(written))


@pytest.mark.parametrize(
    ("kind", "rope", "changes"),
    [
        ("llama", _LLAMA3 | {"rope_theta": 5e5}, {"rope_theta": 1e4}),
        ("llama", _LLAMA3 | {"rope_theta": 5e5}, {"rope_scaling": _LLAMA3 | {"factor": 4.0}}),
        ("llama", {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}, {"rope_scaling": {"type": "dynamic"}}),
        ("modernbert-decoder", _LAYERS, {"local_rope_theta": 5.0}),
    ],
)
def test_positions_that_differ_under_their_two_names_are_refused(
    kind: str, rope: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Who changes one of the two names is told, as programs would compute with different positions."""
    fields = {"model_type": kind, "rope_parameters": rope} | changes
    for text in (json.dumps(fields), json.dumps({"text_config": fields})):
        with pytest.raises(ValueError, match=f"in {next(iter(changes))} than in rope_parameters: change both"):
            check_positions(text)
    check_positions(json.dumps({"model_type": kind, "rope_parameters": rope}))
    check_positions(json.dumps({"model_type": kind, "rope_scaling": rope, "rope_theta": 5.0}))
    check_positions(json.dumps({"model_type": kind, "rope_parameters": rope, "rope_scaling": None}))


@pytest.mark.parametrize("fields", [{"model_type": "gpt2", "n_embd": 8}, {"model_type": "of_other_code"}])
def test_other_configurations_stay_as_they_are(fields: dict[str, Any]) -> None:
    """A type without rotary positions, or one of other code, is written as it is."""
    rope = {"rope_parameters": {"rope_theta": 5.0}} if fields["model_type"] == "of_other_code" else {}
    text = json.dumps(fields | rope)

    assert config_text(text) == text


@pytest.mark.slow
def test_either_form_is_read_as_the_same_positions_for_every_type(tmp_path: Path) -> None:
    """For each causal type transformers reads the same with the earlier names added, and from them alone."""
    found = list(_changed_configs())

    assert len({kind for kind, _, _ in found}) >= 100
    for kind, text, written in found:
        before, after = _read(text, tmp_path), _read(written, tmp_path)
        assert {key: after.get(key) for key in before} == before, kind
        earlier = {key: value for key, value in json.loads(written).items() if key != "rope_parameters"}
        assert _read(json.dumps(earlier), tmp_path) == after, kind


def _changed_configs() -> Iterator[tuple[str, str, str]]:
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            text = AutoConfig.for_model(kind, rope_theta=123_456.0).to_json_string()
        except (ImportError, KeyError, OSError, TypeError, ValueError, StrictDataclassError):
            continue
        if (written := config_text(text)) != text:
            yield kind, text, written


def _read(text: str, folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text(text, encoding="utf-8")
    config: dict[str, Any] = AutoConfig.from_pretrained(folder).to_dict()
    return config
