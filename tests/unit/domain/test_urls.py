"""Secrets in URLs are hidden wherever a URL is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.urls import describe, hide_user, without_secrets

SECRETS = ["CANARY", "CANARY/with/slashes", "CANARY@CANARY", "CANARY#x", "CANARY?x", "CANARY:CANARY"]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_user_part_is_hidden_whatever_it_holds(secret):
    """The user part goes up to the last @ before the host, with characters that should have been escaped."""
    url = f"s3://AKIA:{secret}@bucket/x.npy"
    assert without_secrets(url) == "s3://***@bucket/x.npy"
    assert hide_user(url, "") == "s3://bucket/x.npy"


@given(st.from_regex(r"[A-Za-z0-9/+@#?:]{1,30}", fullmatch=True))
def test_no_user_part_is_left(secret):
    """No secret of any characters is left in the URL."""
    assert hide_user(f"s3://KEY:x{secret}@bucket/x.npy", "") == "s3://bucket/x.npy"


@pytest.mark.parametrize(
    "text", ["s3://bucket/a@b", "http://host:8080/data@v1?page=2", "mail me@home", "see: x@y.org", "/a/b.npy"]
)
def test_a_text_without_secrets_stays(text):
    """A port, an @ in a path and a mail address are no secrets."""
    assert without_secrets(text) == text


def test_a_signature_is_hidden_and_the_sentence_stays():
    """A secret parameter ends where the URL ends, so the words after it can be read."""
    error = ValueError("GET 'https://host/x?part=1&X-Amz-Signature=CANARY'\nfailed (403)")
    assert describe(error) == "GET 'https://host/x?part=1&X-Amz-Signature=***' failed (403)"


def test_an_error_of_the_system_is_its_reason_and_its_file():
    """An error with a number is described by its words, and its file name has no secrets."""
    assert describe(OSError(2, "No such file", "s3://k:CANARY/x@b/a")) == "No such file: s3://***@b/a"
