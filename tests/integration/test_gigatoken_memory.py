"""What gigatoken remembers is forgotten when the process has grown too much."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from holdfast.adapters.tokenizer.backends.byte_level import LETTERS

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import ctypes, json, random, sys
import numpy as np
from tokenizers import Tokenizer
from holdfast.adapters.tokenizer.backends import gigatoken

encoder = gigatoken.GigatokenEncoder(
    Tokenizer.from_str(sys.stdin.read()),
    np.dtype(np.uint16),
    characters_between_looks=1,
    most_growth=int(sys.argv[1]),
)
generator = random.Random(1)
class MallInfo2(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_size_t * 10)]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = MallInfo2
memory, ids = [], []
for _ in range(12):
    words = ("".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=12)) for _ in range(40_000))
    encoder.encode([" ".join(words)])
    ids.append(encoder.encode(["some words and more"]).ids.tolist())
    sizes = libc.mallinfo2().sizes
    memory.append(sizes[4] + sizes[7])  # hblkhd and uordblks: what is in use
print(json.dumps([max(before - after for before, after in zip(memory, memory[1:])), ids]))
"""


def most_given_back(most_growth):
    """Return how many bytes a process that encodes random words frees at most from one batch to the next."""
    pytest.importorskip("gigatoken", reason="gigatoken comes with the extra `fast`")
    core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(LETTERS)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    command = [sys.executable, "-c", CHILD, str(most_growth)]
    # so that what was freed is the system's again, and the process grows and shrinks with what it uses
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    told = subprocess.run(command, input=core.to_str().encode(), env=environment, capture_output=True, check=True)
    given_back, ids = json.loads(told.stdout)
    assert ids == ids[:1] * len(ids)
    return given_back


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc tells what is in use")
@pytest.mark.slow
def test_words_are_forgotten_when_the_process_has_grown():
    """A process that met many words gives their memory back at its limit, and its ids stay the same; below it none."""
    assert most_given_back(24 << 20) > 16 << 20
    assert most_given_back(1 << 40) < 4 << 20
