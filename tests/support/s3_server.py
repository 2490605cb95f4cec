"""A real S3 server on this machine, found through the environment as a user's would be."""

from __future__ import annotations

import contextlib
import gc
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fsspec
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from tests.support.faulty_server import FaultyServer, faulty_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class S3Server:
    """``url`` is the server's own; ``proxy`` stands before it and fails as it is told to; ``bucket`` is there."""

    url: str
    bucket: str
    proxy: FaultyServer

    def files(self) -> S3FileSystem:
        """Return the server's objects, past the proxy."""
        return fsspec.filesystem("s3", endpoint_url=self.url, use_listings_cache=False)

    def put(self, key: str, content: bytes) -> str:
        """Store an object, past the proxy; return its URL."""
        self.files().pipe_file(f"{self.bucket}/{key}", content)
        return f"s3://{self.bucket}/{key}"

    def environment(self, url: str | None = None) -> Mapping[str, str]:
        """Return the variables that lead s3fs to the proxy, or to ``url``; one attempt a request."""
        return {
            "AWS_ENDPOINT_URL": url or self.proxy.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextlib.contextmanager
def s3_server(bucket: str = "corpus") -> Iterator[S3Server]:
    """Run an S3 server behind a faulty proxy, with this process's environment set to reach it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    S3FileSystem.clear_instance_cache()  # its instances remember the environment in which they were made
    try:
        with faulty_server(upstream=(host, port)) as proxy, pytest.MonkeyPatch.context() as patch:
            server = S3Server(f"http://{host}:{port}", bucket, proxy)
            for name, value in server.environment().items():
                patch.setenv(name, value)
            server.files().makedirs(bucket, exist_ok=True)  # all such servers of a process share their buckets
            yield server
    finally:
        S3FileSystem.clear_instance_cache()
        gc.collect()
        moto.stop()
