"""What reading makes of encrypted files that are damaged, rearranged or read with another key."""

from __future__ import annotations

import random

import pytest

from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile
from holdfast.adapters.shared.encryption.streaming_aead import (
    SEGMENT_SIZE,
    AuthenticationError,
    decrypt_stream,
    encrypt_stream,
)
from holdfast.domain.errors import StateError

KEY = bytes(range(32))
HEADER = 40
PLAIN = random.Random(0).randbytes(3 * SEGMENT_SIZE + 1000)
STORED = b"".join(encrypt_stream(KEY, b"checkpoint-1/model", [PLAIN]))
SMALL = b"".join(encrypt_stream(KEY, b"checkpoint-1/model", [PLAIN[:100]]))


def segments_of(stored):
    """Return the header and the segments, the first one without the header."""
    bodies = [stored[start : start + SEGMENT_SIZE] for start in range(0, len(stored), SEGMENT_SIZE)]
    return stored[:HEADER], [bodies[0][HEADER:], *bodies[1:]]


def forward(stored, key, associated_data):
    yield from decrypt_stream(key, associated_data, [stored], name="the model")


def whole(path, key, associated_data):
    with EncryptedFile(path.open("rb", buffering=0), key, associated_data, name="the model") as file:
        yield file.read(0, file.size)


def gather(given, pieces):
    for piece in pieces:
        given += piece


@pytest.fixture
def assert_refused(tmp_path):
    """Return a check that no way of reading gives out a wrong byte, and that each ends with the typed error."""

    def check(stored, *, key=KEY, associated_data=b"checkpoint-1/model", plain=PLAIN):
        path = tmp_path / "file"
        path.write_bytes(stored)
        for pieces in (forward(stored, key, associated_data), whole(path, key, associated_data)):
            given = bytearray()
            with pytest.raises(AuthenticationError, match="the model") as refused:
                gather(given, pieces)
            assert plain.startswith(given)
            assert given != plain
            assert isinstance(refused.value, StateError)

    return check


def test_the_undamaged_file_is_read(tmp_path):
    """What the tests below damage is sound."""
    (tmp_path / "file").write_bytes(STORED)
    assert b"".join(forward(STORED, KEY, b"checkpoint-1/model")) == PLAIN
    assert b"".join(whole(tmp_path / "file", KEY, b"checkpoint-1/model")) == PLAIN


def test_another_key_is_refused(assert_refused):
    """A key of which one bit differs gives out nothing."""
    assert_refused(STORED, key=KEY[:-1] + bytes([KEY[-1] ^ 1]))


@pytest.mark.parametrize("associated_data", [b"", b"checkpoint-2/model", b"checkpoint-1/model "])
def test_a_file_in_another_place_is_refused(assert_refused, associated_data):
    """A file that was encrypted for another place is refused in this one."""
    assert_refused(STORED, associated_data=associated_data)


@pytest.mark.parametrize("place", range(HEADER))
def test_every_byte_of_the_header_counts(assert_refused, place):
    """One flipped bit in any byte of the header is found."""
    for bit in (0, 7):
        damaged = bytearray(SMALL)
        damaged[place] ^= 1 << bit
        assert_refused(bytes(damaged), plain=PLAIN[:100])


def test_every_flipped_bit_is_found(assert_refused):
    """One flipped bit in whichever segment or tag is found."""
    chance = random.Random(2)
    borders = [number * SEGMENT_SIZE + by for number in (1, 2, 3) for by in (-17, -16, -1, 0)]
    for place in [HEADER, *borders, len(STORED) - 1, *(chance.randrange(HEADER, len(STORED)) for _ in range(10))]:
        damaged = bytearray(STORED)
        damaged[place] ^= 1 << chance.randrange(8)
        assert_refused(bytes(damaged))


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 1, 1, 3), (0, 2, 3), (0, 1, 2), (3,)])
def test_segments_have_their_places(assert_refused, order):
    """Segments that were swapped, repeated or left out are refused, each of them authentic by itself."""
    header, segments = segments_of(STORED)
    assert_refused(header + b"".join(segments[number] for number in order))


def test_a_segment_of_another_file_is_refused(assert_refused):
    """A segment of a file with the same key, place and content does not fit into this one."""
    header, segments = segments_of(STORED)
    _, others = segments_of(b"".join(encrypt_stream(KEY, b"checkpoint-1/model", [PLAIN])))
    for number, other in enumerate(others):
        assert_refused(header + b"".join([*segments[:number], other, *segments[number + 1 :]]))


def test_every_cut_is_found(assert_refused):
    """A file that ends anywhere before its end, at the border of a segment above all, is refused."""
    for length in range(len(SMALL)):
        assert_refused(SMALL[:length], plain=PLAIN[:100])
    for number in (1, 2, 3):
        for by in (-1, 0, 1, 15, 16, 17):
            assert_refused(STORED[: number * SEGMENT_SIZE + by])
    assert_refused(STORED[:-1])


def test_what_was_added_is_found(assert_refused):
    """Bytes behind the end, a whole segment or a whole file among them, are refused."""
    full = b"".join(encrypt_stream(KEY, b"checkpoint-1/model", [PLAIN[: 2 * SEGMENT_SIZE - 72]]))
    assert len(full) == 2 * SEGMENT_SIZE
    for more in (b"\0", bytes(16), bytes(SEGMENT_SIZE), SMALL, full[SEGMENT_SIZE:]):
        assert_refused(STORED + more)
        assert_refused(full + more, plain=PLAIN[: 2 * SEGMENT_SIZE - 72])


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path):
    """What was found sound when the file was opened is looked at again when it is read."""
    path = tmp_path / "file"
    path.write_bytes(STORED)
    with EncryptedFile(path.open("rb", buffering=0), KEY, b"checkpoint-1/model", name="the model") as file:
        path.write_bytes(STORED[: SEGMENT_SIZE + 10])
        assert file.read(5, 100) == PLAIN[5:105]
        with pytest.raises(AuthenticationError, match="segment 1"):
            file.read(SEGMENT_SIZE, 100)
