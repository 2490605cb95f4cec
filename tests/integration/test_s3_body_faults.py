"""Faults, refusals, credentials, closing and TLS while the bodies of S3 objects are read."""

from __future__ import annotations

import os
import select
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from pathlib import Path

import fsspec
import pytest

from holdfast.adapters.data_source.ranges import ReadCounter
from holdfast.domain.errors import DataError
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from tests.support.faulty_server import RESET, STALL, TRUNCATE, Answer, Fault, FaultyHandler, ListeningServer
from tests.support.s3_bodies import CONTENT, NATIVE, OWN, QUICK, is_read_by, object_server, open_x, read, seen

pytestmark = pytest.mark.usefixtures("clean_aws_environment")

HASTY = RetryPolicy(first_delay=0.01, max_delay=0.01, deadline=0.4)
CALM = RetryPolicy(first_delay=0.5, max_delay=0.5, deadline=1.2)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def server():
    with object_server() as server:
        yield server


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
    counter = ReadCounter()
    assert read(files, counter=counter, stall_seconds=1e5) == CONTENT  # it would take hours by the stream's own
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
    """A stream that is closed while its range is on its way hangs up, and does not wait for the answer."""
    asked, hung_up = threading.Event(), threading.Event()

    def answer(handler, body):
        asked.set()
        if select.select([handler.connection], [], [], 100)[0]:
            hung_up.set()
        return Answer(503, {}, b"")

    server.answer = answer
    stream = open_x(fsspec.filesystem("s3", endpoint_url=server.url, **OWN))
    stream.raw.start(0)
    assert asked.wait(60)
    stream.close()
    assert hung_up.wait(60)
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
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=280
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
    with ListeningServer(("127.0.0.1", 0), FaultyHandler) as listener:
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
