"""The layout of encrypted files is Tink's: each reads what the other wrote."""

from __future__ import annotations

import io
import random

import pytest

from holdfast.adapters.shared.encryption.streaming_aead import (
    SEGMENT_SIZE,
    SMALL_SEGMENT_SIZE,
    Encryptor,
    decrypt_stream,
    encrypt_stream,
    encrypted_size,
)

tink = pytest.importorskip("tink", reason="tink is in the extra dev")

from tink import secret_key_access, streaming_aead  # noqa: E402  the module above decides whether it is there
from tink.proto import aes_gcm_hkdf_streaming_pb2, tink_pb2  # noqa: E402

KEY = random.Random(0).randbytes(32)
PLAIN = random.Random(1).randbytes(2 * SEGMENT_SIZE + 5)
CASES = [
    (segment, size)
    for segment in (SEGMENT_SIZE, SMALL_SEGMENT_SIZE)
    for size in (0, 1, segment - 57, segment - 56, segment - 55, segment, 2 * segment - 72, 2 * segment + 5)
]


def oracle(segment_size):
    """Return Tink's primitive for ``KEY``, of its template for segments of that size."""
    streaming_aead.register()
    templates = streaming_aead.streaming_aead_key_templates
    template = templates.AES256_GCM_HKDF_1MB if segment_size == SEGMENT_SIZE else templates.AES256_GCM_HKDF_4KB
    key = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingKey(key_value=KEY)
    parameters = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingKeyFormat.FromString(template.value).params
    key.params.CopyFrom(parameters)
    data = tink_pb2.KeyData(
        type_url=template.type_url, value=key.SerializeToString(), key_material_type=tink_pb2.KeyData.SYMMETRIC
    )
    keyset = tink_pb2.Keyset(primary_key_id=1)
    keyset.key.add(key_data=data, status=tink_pb2.ENABLED, key_id=1, output_prefix_type=template.output_prefix_type)
    handle = tink.proto_keyset_format.parse(keyset.SerializeToString(), secret_key_access.TOKEN)
    return handle.primitive(streaming_aead.StreamingAead)


def pushed(size, segment_size):
    """Return the file that an encryptor makes of pieces of 1,000 bytes."""
    encryptor = Encryptor(KEY, b"model", segment_size)
    pieces = [encryptor.add(PLAIN[start : min(start + 1000, size)]) for start in range(0, size, 1000)]
    return b"".join([*pieces, encryptor.finish()])


@pytest.mark.parametrize(("segment_size", "size"), CASES)
def test_tink_reads_what_we_write(segment_size, size):
    """Tink decrypts our files, written at once or bit by bit, with the same key and associated data."""
    at_once = b"".join(encrypt_stream(KEY, b"model", [PLAIN[:size]], segment_size))
    for stored in (at_once, pushed(size, segment_size)):
        with oracle(segment_size).new_decrypting_stream(io.BytesIO(stored), b"model") as stream:
            assert stream.read() == PLAIN[:size]


class Kept(io.BytesIO):
    """Bytes that stay readable when the stream that wrote them is closed."""

    def close(self):
        self.kept = self.getvalue()
        super().close()


@pytest.mark.parametrize(("segment_size", "size"), CASES)
def test_we_read_what_tink_writes(segment_size, size):
    """We decrypt Tink's file, whose size is the one that we foretell."""
    target = Kept()
    with oracle(segment_size).new_encrypting_stream(target, b"model") as stream:
        stream.write(PLAIN[:size])
    assert len(target.kept) == encrypted_size(size, segment_size)
    plain = decrypt_stream(KEY, b"model", [target.kept], name="Tink's file", segment_size=segment_size)
    assert b"".join(plain) == PLAIN[:size]
