import os
import subprocess
import sys

import numpy as np
import pytest

from holdfast.adapters.shared.minhash import MinHashSignatures

SCRIPT = """
import hashlib
import numpy as np
from holdfast.adapters.shared.minhash import MinHashSignatures
hashes = np.arange(1, 2001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
signatures = MinHashSignatures(112, 0)(hashes, np.array([0, 1, 500, 2000]))
print(hashlib.sha256(signatures.tobytes()).hexdigest())
"""


def hashes_of(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def test_signatures_are_the_same_in_every_process():
    """Known sets have known signatures, with one thread and with all, so that stored keys stay valid."""
    expected = "3cba5afad12e652cd69c20d72855e429e853f21d905a4e1311be6775762341bc"
    for threads in ({}, {"RAYON_NUM_THREADS": "1"}):
        command = [sys.executable, "-c", SCRIPT]
        told = subprocess.run(command, env=os.environ | threads, check=True, capture_output=True, text=True).stdout
        assert told.strip() == expected


@pytest.mark.parametrize("similarity", [0.5, 0.8, 0.95])
def test_the_share_of_equal_values_estimates_the_similarity(similarity):
    """Over many pairs the mean of the estimates is the similarity, and their deviation at most that of MinHash."""
    common, single = int(400 * similarity), (400 - int(400 * similarity)) // 2
    flat, offsets = hashes_of(400 * 300), [0]
    sets = []
    for number in range(300):
        own = flat[number * 400 : (number + 1) * 400]
        sets += [own[: common + single], np.concatenate([own[:common], own[common + single :]])]
        offsets += [offsets[-1] + len(sets[-2]), offsets[-1] + len(sets[-2]) + len(sets[-1])]
    signatures = MinHashSignatures(112, 3)(np.concatenate(sets), np.array(offsets))
    estimates = (signatures[::2] == signatures[1::2]).mean(1)
    assert estimates.mean() == pytest.approx(similarity, abs=0.01)
    assert estimates.std() <= 1.1 * (similarity * (1 - similarity) / 112) ** 0.5


def test_a_set_has_no_order_and_no_repetitions():
    """A signature depends on the values alone."""
    own = hashes_of(100)
    shuffled = np.concatenate([own, own[:50]])
    np.random.default_rng(1).shuffle(shuffled)
    signatures = MinHashSignatures(64, 0)(np.concatenate([own, shuffled]), np.array([0, 100, 250]))
    assert signatures.dtype == np.uint32
    assert signatures[0].tolist() == signatures[1].tolist()


def test_seeds_give_other_signatures():
    """The seed and the number of values are part of the fingerprint, as they change the signatures."""
    own, offsets = hashes_of(100), np.array([0, 100])
    assert (MinHashSignatures(64, 0)(own, offsets) != MinHashSignatures(64, 1)(own, offsets)).any()
    makers = [MinHashSignatures(64, 0), MinHashSignatures(64, 1), MinHashSignatures(65, 0)]
    assert len({each.fingerprint() for each in makers}) == 3


def test_no_set_has_no_signature():
    """An empty batch gives an empty array of the right width."""
    assert MinHashSignatures(64, 0)(hashes_of(0), np.array([0])).shape == (0, 64)
