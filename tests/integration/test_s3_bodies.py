"""Who reads the bodies of S3 objects, and what becomes of options, credentials, faults and secrets on that way."""

from __future__ import annotations

import os
import random
import select
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from functools import partial
from pathlib import Path

import fsspec
import pytest
from fsspec.asyn import sync
from s3fs import S3FileSystem

from holdfast.adapters.data_source.ranges import ReadCounter, open_ranges
from holdfast.adapters.data_source.s3_stores import store_of
from holdfast.domain.errors import DataError
from holdfast.domain.fault_tolerance.retry_policy import RetryPolicy
from tests.support.faulty_server import RESET, STALL, TRUNCATE, Answer, Fault, _Handler, _Server, faulty_server

CONTENT = random.Random(3).randbytes(100_000)
QUICK = RetryPolicy(first_delay=0.01, max_delay=0.01, deadline=10)
HASTY = RetryPolicy(first_delay=0.01, max_delay=0.01, deadline=0.4)
CALM = RetryPolicy(first_delay=0.5, max_delay=0.5, deadline=1.2)
OWN = {"key": "AKIAEXAMPLE", "secret": "hush/hush+key", "token": "hushtoken"}
NATIVE, PYTHON = "object_store/", "aiobotocore/"
ROOT = Path(__file__).parents[2]


class Derived(S3FileSystem):
    """A file system that may do as it likes."""


@pytest.fixture(autouse=True)
def calm_environment(monkeypatch, tmp_path):
    """Let nothing of the machine's own environment decide."""
    for name in os.environ:
        if name.startswith("AWS_") or name.lower().endswith(("_proxy", "ca_bundle")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    S3FileSystem.clear_instance_cache()
    yield
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def server():
    files = {"/bucket/x": CONTENT, "/bucket/a%20%C3%A9%2B": CONTENT, "/bucket/y/": CONTENT, "/bucket/y": CONTENT[::-1]}
    with faulty_server(files=files) as server:
        yield server


def open_x(files, path="bucket/x", **limits):
    limits = {"policy": QUICK, "range_bytes": 30_000, "ahead": 1} | limits
    return open_ranges(files, path, len(CONTENT), **limits)


def read(files, path="bucket/x", **limits):
    with open_x(files, path, **limits) as stream:
        return stream.read()


def seen(server, name):
    """Return what the requests said under ``name``."""
    return [{key.lower(): value for key, value in headers.items()}.get(name) for headers in server.headers]


def is_read_by(who, server):
    """Return whether all requests were of the client that calls itself ``who``."""
    return bool(server.headers) and all(agent.startswith(who) for agent in seen(server, "user-agent"))


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


def test_each_fault_is_one_retry(server):
    """Native code repeats nothing by itself: each fault is counted and paused for where all others are."""
    server.faults = deque([Fault(status=503), RESET, TRUNCATE, Fault(status=429), Fault(status=500)])
    counter = ReadCounter()
    assert read(fsspec.filesystem("s3", endpoint_url=server.url, **OWN), counter=counter, ahead=0) == CONTENT
    assert counter.read_retries == 5
    assert is_read_by(NATIVE, server)


def test_a_silent_server_is_given_up_after_the_read_timeout(server):
    """The file system's own time-outs hold: silence of that length ends a request, which is made again."""
    server.faults = deque([STALL])
    files = fsspec.filesystem("s3", endpoint_url=server.url, **OWN, config_kwargs={"read_timeout": 1})
    counter, start = ReadCounter(), time.monotonic()
    assert read(files, counter=counter) == CONTENT
    assert time.monotonic() - start < 20  # the stream's own patience is 30 seconds
    assert counter.read_retries >= 1  # so short a patience ends on a busy machine, too


def refuse_native(server, status):
    serve = server.answer

    def answer(handler, body):
        is_native = handler.headers["User-Agent"].startswith(NATIVE)
        return Answer(status, {}, b"") if is_native else serve(handler, body)

    server.answer = answer


@pytest.mark.parametrize("status", [301, 400, 403])
def test_what_native_code_is_refused_s3fs_asks_for_again(server, status):
    """Where s3fs gets what native code does not, as with a bucket of another region, it reads on alone."""
    refuse_native(server, status)
    counter = ReadCounter()
    files = fsspec.filesystem("s3", endpoint_url=server.url, **OWN)
    assert read(files, counter=counter, ahead=0) == CONTENT
    assert counter.read_retries == 0
    assert [agent.partition("/")[0] for agent in seen(server, "user-agent")] == ["object_store", *["aiobotocore"] * 4]


@pytest.mark.parametrize(
    ("status", "kind", "policy"),
    [(403, PermissionError, QUICK), (404, FileNotFoundError, QUICK), (429, ConnectionError, CALM)],
)
def test_the_cause_says_what_a_refusal_means(server, status, kind, policy):
    """No rights, no such object and a server that is busy are told apart by the type of the cause."""
    files = fsspec.filesystem("s3", endpoint_url=server.url, **OWN)
    assert read(files) == CONTENT  # what is made and imported at first may take longer than the calm one waits
    server.always = Fault(status=status)
    with pytest.raises(DataError) as failure:
        read(files, policy=policy)
    assert isinstance(failure.value.__cause__, kind)


@pytest.mark.parametrize("fault", [400, 403, 404, 503, RESET, STALL, TRUNCATE], ids=str)
def test_no_error_tells_a_secret(server, fault):
    """Neither key nor session token stands in an error or in one that led to it, even if the server repeats them."""
    if isinstance(fault, int):
        server.answer = lambda handler, _: Answer(fault, {}, f"<Error>{OWN} {handler.headers}</Error>".encode())
    else:
        server.always = fault
    with pytest.raises(DataError) as failure:
        read(fsspec.filesystem("s3", endpoint_url=server.url, **OWN), policy=HASTY, stall_seconds=0.2)
    told = "".join(traceback.format_exception(failure.value))
    assert "hush" not in told
    assert "/x cannot be read" in told


def test_credentials_that_expire_are_asked_for_anew(server, tmp_path):
    """Each range is signed with the credentials that are valid when it is asked for."""
    script = tmp_path / "credentials.sh"
    script.write_text(
        f"""echo x >> {tmp_path}/calls
        echo '{{"Version": 1, "AccessKeyId": "AKIA", "SecretAccessKey": "hush",
        "SessionToken": "token-'$(wc -l < {tmp_path}/calls | tr -d ' ')'",
        "Expiration": "'$(date -u -d '+30 seconds' +%Y-%m-%dT%H:%M:%SZ)'"}}'"""
    )
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(f"[default]\ncredential_process = sh {script}\n")
    assert read(fsspec.filesystem("s3", endpoint_url=server.url), ahead=0) == CONTENT
    assert is_read_by(NATIVE, server)
    tokens = seen(server, "x-amz-security-token")
    assert len(set(tokens)) == len(tokens) == 4


def test_closing_drops_the_connection(server):
    """A stream that is closed while its range is on its way hangs up, and does so at once."""
    asked, hung_up = threading.Event(), threading.Event()

    def answer(handler, body):
        asked.set()
        if select.select([handler.connection], [], [], 20)[0]:
            hung_up.set()
        return Answer(503, {}, b"")

    server.answer = answer
    stream = open_x(fsspec.filesystem("s3", endpoint_url=server.url, **OWN))
    stream.raw.start(0)
    assert asked.wait(20)
    start = time.monotonic()
    stream.close()
    assert hung_up.wait(10)
    assert time.monotonic() - start < 5
    assert is_read_by(NATIVE, server)


def test_a_process_may_end_while_bodies_arrive(server):
    """A process that ends with requests on their way drops them first, as their end would abort it."""
    serve = server.answer

    def answer(handler, body):
        first = int(handler.headers["Range"].partition("=")[2].partition("-")[0])
        time.sleep(first * 1e-5)  # so that one arrives at each moment of the end
        return serve(handler, body)

    server.answer = answer
    code = f"""
import asyncio, atexit, fsspec
from holdfast.adapters.data_source.ranges import open_ranges
from fsspec.asyn import get_loop
atexit.register(lambda: print(len(asyncio.all_tasks(get_loop())), "requests"))  # the first is the last to be called
files = fsspec.filesystem("s3", endpoint_url={server.url!r}, key="a", secret="b")
stream = open_ranges(files, "bucket/x", {len(CONTENT)}, range_bytes=1000, ahead=99)
assert stream.read(1) == {CONTENT[:1]!r}
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=110
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 requests\n", "")
    assert is_read_by(NATIVE, server)


@pytest.fixture
def secure_url(server, tmp_path):
    """Return where ``server`` is reached by TLS, with a certificate that nobody knows."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=127.0.0.1")
    subprocess.run(["openssl", "req", *made], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with _Server(("127.0.0.1", 0), _Handler) as listener:
        listener.script = server
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"https://127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()
        thread.join()
        listener.drop_connections()


def test_a_certificate_that_is_not_trusted_ends_the_reading_at_once(server, secure_url):
    """A server that cannot prove itself gets no request, whichever client asks, and is not asked again."""
    counter = ReadCounter()
    hasty = {"retries": {"max_attempts": 0}}
    with pytest.raises(DataError, match=r"(?i)certificate"):
        read(fsspec.filesystem("s3", endpoint_url=secure_url, **OWN, config_kwargs=hasty), counter=counter)
    assert counter.read_retries == 0
    assert server.requests == []


def test_verification_can_be_turned_off(server, secure_url):
    """Who says that certificates do not matter is taken at that word by native code too."""
    files = fsspec.filesystem("s3", endpoint_url=secure_url, **OWN, client_kwargs={"verify": False})
    assert read(files) == CONTENT
    assert is_read_by(NATIVE, server)
