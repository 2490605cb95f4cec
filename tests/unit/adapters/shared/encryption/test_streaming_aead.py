"""Encrypted files: sizes, pieces and places, around the borders of segments above all."""

from __future__ import annotations

import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile
from holdfast.adapters.shared.encryption.streaming_aead import (
    SEGMENT_SIZE,
    SMALL_SEGMENT_SIZE,
    Encryptor,
    decrypt_stream,
    encrypt_stream,
    encrypted_size,
    new_key,
)

KEY = bytes(range(32))
PLAIN = random.Random(0).randbytes(3 * SEGMENT_SIZE)
BORDERS = [0, SEGMENT_SIZE - 56, SEGMENT_SIZE, 2 * SEGMENT_SIZE - 72, 2 * SEGMENT_SIZE]
near_borders = st.builds(lambda border, by: max(0, border + by), st.sampled_from(BORDERS), st.integers(-3, 3))
sizes = near_borders | st.integers(0, len(PLAIN))
few = settings(deadline=None, max_examples=60)


def cut(data, places):
    return [data[start:end] for start, end in pairwise([0, *sorted(places), len(data)])]


def encrypted(data, associated_data=b"model.safetensors"):
    return b"".join(encrypt_stream(KEY, associated_data, [data]))


def decrypted(chunks, associated_data=b"model.safetensors"):
    return b"".join(decrypt_stream(KEY, associated_data, chunks, name="the file"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("encrypted")


def opened(folder, data, segment_size=SEGMENT_SIZE):
    path = folder / "file"
    path.write_bytes(data)
    file = path.open("rb", buffering=0)
    return EncryptedFile(file, KEY, b"model.safetensors", name="the file", segment_size=segment_size)


@few
@given(size=sizes, cuts=st.lists(st.integers(0, 3 * SEGMENT_SIZE), max_size=4), again=st.lists(sizes, max_size=4))
def test_what_was_encrypted_comes_back(size, cuts, again):
    """Bytes of any number, in pieces of any size, come back through pieces of any other size."""
    data = PLAIN[:size]
    stored = b"".join(encrypt_stream(KEY, b"", cut(data, [min(place, size) for place in cuts])))
    assert len(stored) == encrypted_size(size)
    assert b"".join(decrypt_stream(KEY, b"", cut(stored, again), name="the file")) == data


@few
@given(size=sizes, places=st.lists(st.tuples(sizes, sizes), max_size=6))
def test_any_part_can_be_read(folder, size, places):
    """A part from any place of any length is that of the plaintext, and shorter only where the file ends."""
    with opened(folder, encrypted(PLAIN[:size])) as file:
        assert file.size == size
        for offset, length in [*places, (0, size), (size, 1), (max(0, size - 1), 2)]:
            assert file.read(offset, length) == PLAIN[:size][offset : offset + length]


@few
@given(size=st.integers(0, 3 * SMALL_SEGMENT_SIZE), cuts=st.lists(st.integers(0, 3 * SMALL_SEGMENT_SIZE), max_size=4))
def test_pieces_may_come_now_and_then(folder, size, cuts):
    """What an encryptor is given bit by bit is one file, which reads back whole and from any place."""
    encryptor = Encryptor(KEY, b"model.safetensors", SMALL_SEGMENT_SIZE)
    pieces = [encryptor.add(piece) for piece in cut(PLAIN[:size], [min(place, size) for place in cuts])]
    stored = b"".join([*pieces, encryptor.finish()])
    assert len(stored) == encrypted_size(size, SMALL_SEGMENT_SIZE)
    with opened(folder, stored, SMALL_SEGMENT_SIZE) as file:
        assert file.read(0, size + 1) == PLAIN[:size]
        assert file.read(size // 2, 5000) == PLAIN[:size][size // 2 :][:5000]


def test_the_pieces_of_several_files_may_be_arrays():
    """Whatever has a buffer can be encrypted: arrays of several dimensions, empty ones, views and byte arrays."""
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    pieces = [array, np.zeros((0, 3)), memoryview(b"abc")[1:], bytearray(b"")]
    assert decrypted(encrypt_stream(KEY, b"model.safetensors", pieces)) == array.tobytes() + b"bc"


def test_nothing_encrypted_looks_like_another():
    """The same bytes under the same key are stored differently each time, and hold nothing of the plaintext."""
    first, second = encrypted(PLAIN[:100]), encrypted(PLAIN[:100])
    assert first[1:] != second[1:]
    assert PLAIN[:8] not in first
    assert new_key() != new_key()


def test_memory_holds_some_segments_whatever_the_size():
    """Encrypting and decrypting 64 MiB takes a few MiB."""
    half = bytes(SEGMENT_SIZE // 2)
    tracemalloc.start()
    stored = encrypt_stream(KEY, b"", (half for _ in range(128)))
    total = sum(len(piece) for piece in decrypt_stream(KEY, b"", stored, name="the file"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 128 * len(half)
    assert peak < 8 * SEGMENT_SIZE


def test_a_piece_may_be_reused_for_the_next(folder):
    """A caller that fills one buffer again and again loses nothing."""
    buffer = bytearray(SEGMENT_SIZE // 3)

    def refilled():
        for number in range(7):
            buffer[:] = bytes([number]) * len(buffer)
            yield buffer

    expected = b"".join(bytes([number]) * len(buffer) for number in range(7))
    stored = b"".join(encrypt_stream(KEY, b"model.safetensors", refilled()))
    assert decrypted([stored]) == expected


def test_threads_read_one_file_together(folder):
    """Threads that read from many places get each their own."""
    chance = random.Random(1)
    places = [chance.randrange(len(PLAIN)) for _ in range(300)]
    with opened(folder, encrypted(PLAIN)) as file, ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda place: file.read(place, 5000), places))
    assert parts == [PLAIN[place : place + 5000] for place in places]


def test_a_key_of_another_length_is_a_mistake_of_the_program():
    """Only 32 bytes are a key."""
    with pytest.raises(ValueError, match="32 bytes"):
        list(encrypt_stream(b"short", b"", []))
