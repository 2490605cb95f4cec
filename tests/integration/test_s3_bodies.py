"""The client that reads the bodies of S3 objects, and how options, variables and addresses reach it."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

import fsspec
import pytest
from fsspec.asyn import sync
from s3fs import S3FileSystem

from holdfast.adapters.data_source.s3_stores import store_of
from tests.support.s3_bodies import CONTENT, NATIVE, OWN, PYTHON, is_read_by, object_server, read, seen

pytestmark = pytest.mark.usefixtures("clean_aws_environment")


class Derived(S3FileSystem):
    """A file system that may do as it likes."""


@pytest.fixture
def server():
    with object_server() as server:
        yield server


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"config_kwargs": {"read_timeout": 9, "retries": {"max_attempts": 2}, "max_pool_connections": 20}},
        {"client_kwargs": {"region_name": "eu-north-1", "verify": False}},
        {"use_listings_cache": False, "requester_pays": False, "s3_additional_kwargs": {}},
    ],
    ids=str,
)
def test_plain_options_go_the_native_way(server, options):
    """An endpoint behind http, keys and the like are understood: native code reads, signed for the region."""
    assert read(fsspec.filesystem("s3", endpoint_url=server.url, **OWN, **options)) == CONTENT
    assert is_read_by(NATIVE, server)
    region = options.get("client_kwargs", {}).get("region_name", "us-east-1")
    assert all(f"AKIAEXAMPLE/{time.strftime('%Y')}" in text for text in seen(server, "authorization"))
    assert all(f"/{region}/s3/" in text for text in seen(server, "authorization"))
    assert set(seen(server, "x-amz-security-token")) == {"hushtoken"}


def test_the_environment_alone_leads_the_native_way(server, monkeypatch):
    """Where no option is given, what s3fs finds in the environment and in a profile holds for native code too."""
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(
        f"[profile far]\nregion = eu-west-3\nendpoint_url = {server.url}\n"
        "aws_access_key_id = AKIAPROFILE\naws_secret_access_key = hush\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "far")
    assert read(fsspec.filesystem("s3")) == CONTENT
    assert is_read_by(NATIVE, server)
    assert all("AKIAPROFILE" in text and "/eu-west-3/s3/" in text for text in seen(server, "authorization"))


def test_an_anonymous_reader_signs_nothing(server, monkeypatch):
    """Keys in the environment stay unused where access is anonymous."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert read(fsspec.filesystem("s3", endpoint_url=server.url, anon=True)) == CONTENT
    assert is_read_by(NATIVE, server)
    assert set(seen(server, "authorization")) == {None}


def test_variables_that_only_native_code_knows_change_nothing(server, monkeypatch):
    """Options of the file system are stronger than variables, and those that s3fs does not know have no effect."""
    for name, value in {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_ENDPOINT": "http://127.0.0.1:9",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REQUEST_PAYER": "true",
        "AWS_S3_EXPRESS": "true",
        "AWS_SESSION_TOKEN": "other",
        "AWS_REGION": "eu-west-1",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():
        monkeypatch.setenv(name, value)
    assert read(fsspec.filesystem("s3", endpoint_url=server.url, key="AKIAEXAMPLE", secret="hush")) == CONTENT
    assert is_read_by(NATIVE, server)
    assert all("/us-east-1/s3/" in text for text in seen(server, "authorization"))
    assert {*seen(server, "x-amz-security-token"), *seen(server, "x-amz-request-payer")} == {None}


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"requester_pays": True}, "x-amz-request-payer"),
        (
            {"s3_additional_kwargs": {"SSECustomerKey": "k" * 32, "SSECustomerAlgorithm": "AES256"}},
            "x-amz-server-side-encryption-customer-key",
        ),
        ({"config_kwargs": {"user_agent_extra": "us"}}, "user-agent"),
        ({"config_kwargs": {"s3": {"use_accelerate_endpoint": False}, "tcp_keepalive": True}}, "user-agent"),
        ({"new_option_of_some_year": None, "config_kwargs": {"signature_version": "s3"}}, "user-agent"),
    ],
    ids=str,
)
def test_other_options_are_kept_by_s3fs(server, options, header):
    """What native code could not follow is read by s3fs, and the option arrives."""
    options = {name: value for name, value in options.items() if value is not None}
    assert read(fsspec.filesystem("s3", endpoint_url=server.url, **OWN, **options)) == CONTENT
    assert is_read_by(PYTHON, server)
    assert None not in seen(server, header)


@pytest.mark.parametrize(
    "case", ["not installed", "subclass", "session", "by position", "proxy", "odd key", "odd bucket"]
)
def test_where_native_code_has_no_place_s3fs_reads(server, monkeypatch, case):
    """An installation without obstore, a file system or a key that may mean something else: s3fs reads."""
    kind, path, options = S3FileSystem, "bucket/x", {}
    if case == "not installed":
        monkeypatch.setitem(sys.modules, "obstore.store", None)
    elif case == "subclass":
        kind = Derived
    elif case == "session":
        from aiobotocore.session import AioSession

        options = {"session": AioSession()}
    elif case == "by position":
        kind = partial(S3FileSystem, False)  # the ninth would be requester_pays
    elif case == "proxy":
        monkeypatch.setenv("http_proxy", server.url)
        server.files[f"{server.url}/bucket/x"] = CONTENT
    elif case == "odd key":
        path = "bucket/y/"
    else:
        server.files["/Bucket_/x"] = CONTENT
        path = "Bucket_/x"
    assert read(kind(endpoint_url=server.url, **OWN, **options), path) == CONTENT
    assert is_read_by(PYTHON, server)


def test_a_key_with_other_characters_is_found(server):
    """Spaces, letters beyond ASCII and signs that URLs use arrive as s3fs sends them."""
    assert read(fsspec.filesystem("s3", endpoint_url=server.url, **OWN), "bucket/a é+") == CONTENT
    assert is_read_by(NATIVE, server)


def url_of(files, path):
    """Return where s3fs asks for ``path``, without asking."""
    found = []

    def stop(request, **_):
        found.append(request.url)
        raise RuntimeError

    files.s3.meta.events.register("before-send.s3", stop)
    with pytest.raises(RuntimeError):
        files.cat_file(path)
    return found[0]


@pytest.mark.parametrize(
    ("bucket", "options", "endpoint"),
    [
        ("corpus", {"client_kwargs": {"region_name": "eu-west-1"}}, "https://corpus.s3.eu-west-1.amazonaws.com"),
        ("my.corpus", {"client_kwargs": {"region_name": "eu-west-1"}}, "https://s3.eu-west-1.amazonaws.com"),
        ("corpus", {"config_kwargs": {"s3": {"addressing_style": "path"}}}, "https://s3.amazonaws.com"),
        ("corpus", {"endpoint_url": "https://minio:9000/"}, "https://minio:9000"),
        (
            "corpus",
            {"endpoint_url": "http://oss:90", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
            "http://corpus.oss:90",
        ),
        ("corpus", {"use_ssl": False}, "http://corpus.s3.amazonaws.com"),
        ("corpus--use1-az4--x-s3", {}, None),
        ("corpus", {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, None),
        ("corpus", {"client_kwargs": {"verify": "/etc/own.pem"}}, None),
    ],
    ids=str,
)
def test_the_place_is_addressed_as_s3fs_addresses_it(bucket, options, endpoint):
    """The bucket stands before the host or behind it, by the same rule; what is not understood is left to s3fs."""
    files = fsspec.filesystem("s3", **OWN, **options)
    store = sync(files.loop, store_of, files, bucket)
    if endpoint is None:
        assert store is None
        return
    is_hosted = f"//{bucket}." in endpoint
    assert url_of(files, f"{bucket}/x") == (f"{endpoint}/x" if is_hosted else f"{endpoint}/{bucket}/x")
    assert store.config["endpoint"] == endpoint
    assert store.config["virtual_hosted_style_request"] == str(is_hosted).lower()
    assert "hush" not in f"{store!r} {store.config}"


def test_certificates_of_ones_own_are_left_to_s3fs(monkeypatch):
    """Where TLS is to trust certain certificates only, native code is not used: it would trust others too."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/own.pem")
    files = fsspec.filesystem("s3", anon=True)
    monkeypatch.setattr("aiobotocore.httpsession.get_cert_path", lambda _: True)
    assert sync(files.loop, store_of, files, "corpus") is None
