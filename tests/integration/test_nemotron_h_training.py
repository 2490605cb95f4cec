import sysconfig
from pathlib import Path

import numpy as np
import torch

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.domain.data.packing import SlidingPacking, place_rows
from holdfast.domain.data.row_index import read_rows

LENGTH, ROWS, STEPS, END = 64, 8, 60, 256
CONFIG = {
    "model_type": "nemotron_h",
    "hidden_size": 48,
    "intermediate_size": 96,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 1,
    "ssm_state_size": 16,
    "chunk_size": 32,
}


def batches():
    """Yield batches of bytes of the standard library's own text, a document a row, none of them twice."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [(library / name).read_bytes() for name in ("argparse.py", "typing.py", "inspect.py", "datetime.py")]
    pieces = [text[start : start + LENGTH] for text in texts for start in range(0, len(text), LENGTH)]
    order = np.random.default_rng(0).permutation(len(pieces))[: STEPS * ROWS]
    documents = [np.frombuffer(pieces[place], np.uint8).astype(np.int64) for place in order]
    for begin in range(0, len(documents), ROWS):
        yield read_rows(place_rows(documents[begin : begin + ROWS], SlidingPacking(LENGTH, LENGTH)), LENGTH)


def test_a_tiny_nemotron_h_learns():
    """In 60 steps on ever new real text the loss falls by more than 0.3 nats a token, and stays finite."""
    factory = HuggingfaceModelFactory(config=CONFIG)
    model = factory.build(vocabulary_size=257, end_of_text=END, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for batch in batches():
        names = ("input_ids", "position_ids", "loss_mask")
        loss = model(**{name: torch.from_numpy(getattr(batch, name)) for name in names}) / batch.num_targets
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == STEPS
    assert np.isfinite(losses).all()
    assert np.mean(losses[:5]) - np.mean(losses[-10:]) >= 0.3
