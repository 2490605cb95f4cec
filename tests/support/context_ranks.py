"""Compares the logits of rows of three documents with those of each document alone, as a script, one process a rank."""

from __future__ import annotations

import json
import os
import sys

import torch
from torch import distributed

from holdfast.adapters.shared.modeling.attention import found_ends, packed_arguments
from holdfast.adapters.shared.modeling.tensor_parallel import ContextParallelism
from holdfast.bootstrap.process.exit_codes import end_with
from tests.support.engine_ranks import FACTORIES, VOCABULARY

LENGTHS = ((5, 16, 11), (20, 1, 11))


def rows():
    """Return the ids and the positions of two rows of three documents each, int64 (2, 32)."""
    ids = torch.randint(0, VOCABULARY, (2, 32), generator=torch.Generator().manual_seed(1))
    positions = [torch.cat([torch.arange(length) for length in lengths]) for lengths in LENGTHS]
    return ids, torch.stack(positions)


def apart(network, ids):
    """Return the logits of each document in a forward pass of its own, (2, 32, vocabulary)."""
    whole = []
    for row, lengths in zip(ids, LENGTHS, strict=True):
        parts = [part[None] for part in torch.split(row, lengths)]
        logits = [network(part, position_ids=torch.arange(part.shape[1])[None], use_cache=False) for part in parts]
        whole.append(torch.cat([each.logits[0] for each in logits]))
    return torch.stack(whole)


@torch.no_grad()
def main(kind):
    distributed.init_process_group("gloo")
    network = FACTORIES[kind].build(vocabulary_size=VOCABULARY, end_of_text=VOCABULARY - 1, seed=0).network
    ids, positions = rows()
    expected = apart(network, ids)
    context = ContextParallelism(network, distributed.group.WORLD, tensor=1)
    arguments = packed_arguments(network, positions)
    arguments = context.own_arguments(arguments, positions, found_ends(positions))
    own = network(input_ids=context.own_tokens(ids), **arguments).logits
    found = context.whole_rows(own)
    if os.environ["RANK"] == "0":
        sys.stdout.write(json.dumps([float((found - expected).abs().max()), float(expected.abs().max())]) + "\n")
        sys.stdout.flush()
    distributed.barrier()
    return 0


if __name__ == "__main__":
    end_with(lambda: main(*sys.argv[1:]))
