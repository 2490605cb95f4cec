"""Reads an object of a local S3 server, and tells from its requests which client read it."""

from __future__ import annotations

import random

from holdfast.adapters.data_source.ranges import open_ranges
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from tests.support.faulty_server import faulty_server

CONTENT = random.Random(3).randbytes(100_000)
QUICK = RetryPolicy(first_delay=0.01, max_delay=0.01, deadline=60)
OWN = {"key": "AKIAEXAMPLE", "secret": "hush/hush+key", "token": "hushtoken"}
NATIVE, PYTHON = "object_store/", "aiobotocore/"


def object_server():
    """Return a context with a server of the objects that the tests read."""
    files = {"/bucket/x": CONTENT, "/bucket/a%20%C3%A9%2B": CONTENT, "/bucket/y/": CONTENT, "/bucket/y": CONTENT[::-1]}
    return faulty_server(files=files)


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
