"""Builds obstore clients from the options of s3fs file systems, where obstore supports all of them."""

from __future__ import annotations

import atexit
import os
import re
import time
from asyncio import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

from holdfast.adapters.shared.network.retry import TRANSIENT_STATUSES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from fsspec import AbstractFileSystem
    from obstore import GetOptions
    from obstore.store import ClientConfig, S3Config, S3Credential, S3Store

_OPTIONS = {
    *("anon", "key", "secret", "token", "username", "password", "profile", "endpoint_url", "use_ssl"),
    *("client_kwargs", "config_kwargs", "version_aware", "cache_regions", "max_concurrency", "fixed_upload_size"),
    *("default_block_size", "default_fill_cache", "default_cache_type", "skip_instance_cache"),
    *("use_listings_cache", "listings_expiry_time", "max_paths"),
}
_OF_CLIENT = {
    *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
    *("region_name", "endpoint_url", "use_ssl", "verify"),
}
_OF_CONFIG = {
    *("region_name", "signature_version", "connect_timeout", "read_timeout"),
    *("max_pool_connections", "retries", "s3"),
}
_OF_S3 = {"addressing_style", "us_east_1_regional_endpoint", "payload_signing_enabled"}
_BUCKET = re.compile(r"(?!.*--(?:x-s3|ol-s3)$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # no directory, no access point
_AMAZON = re.compile(r"s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com(?:\.cn)?")


@dataclass(frozen=True, slots=True)
class _Held:
    credentials: object
    store: S3Store | None


# s3fs builds a new client with each session; it holds all options of the environment and configuration files
_held: WeakKeyDictionary[Any, dict[str, _Held]] = WeakKeyDictionary()


async def store_of(files: AbstractFileSystem, bucket: str) -> S3Store | None:
    """Return a store in which obstore reads ``bucket`` as ``files``, an ``S3FileSystem``, would, or None.

    It is None if obstore is not installed; if ``files`` is of a subclass or has options that obstore does not support
    (requester pays, customer keys and other additions to requests, a given session, settings of botocore beyond region,
    time-outs and addressing, a custom ``AWS_CA_BUNDLE``, a proxy); if the bucket is an access point or a directory
    bucket; if there are no credentials; or after :func:`give_up`. Changed credentials give a new store.
    """
    await files.set_session()
    client = await files.get_s3(bucket)
    held = _held.setdefault(client, {}).get(bucket)
    if held is not None and held.store is None:
        return None
    if files.anon:
        credentials = None
    elif (source := _source_of_credentials(client)) is None:
        return None
    else:
        credentials = await source.get_frozen_credentials()  # refreshes those that expire soon
    if held is None or held.credentials != credentials:
        held = _held[client][bucket] = _Held(credentials, _store(files, client, bucket, credentials))
    return held.store


async def give_up(files: AbstractFileSystem, bucket: str) -> None:
    """Have ``files`` read ``bucket`` itself from now on."""
    _held.setdefault(await files.get_s3(bucket), {})[bucket] = _Held(None, None)


def _source_of_credentials(client: Any) -> Any:
    return getattr(getattr(client, "_request_signer", None), "_credentials", None)


def _store(files: AbstractFileSystem, client: Any, bucket: str, credentials: Any) -> S3Store | None:
    url = client.meta.endpoint_url
    verify = _verify(files) if url.startswith("https:") else True
    if not _has_known_options(files, client) or not _BUCKET.fullmatch(bucket) or _proxy(url) or verify is None:
        return None
    try:
        from obstore.store import S3Store
    except ImportError:
        return None

    def provide() -> S3Credential:
        return {
            "access_key_id": credentials.access_key,
            "secret_access_key": credentials.secret_key,
            "token": credentials.token,
            "expires_at": None,
        }

    return S3Store(
        bucket,
        config=_config(url, client.meta, bucket, is_anonymous=bool(files.anon)),
        client_options=_client_options(client.meta.config, verify=verify),
        retry_config={"max_retries": 0},
        credential_provider=None if credentials is None else provide,
    )


def _has_known_options(files: AbstractFileSystem, client: Any) -> bool:
    config = client.meta.config
    is_signed = files.anon or config.signature_version == "s3v4"
    return (
        type(files).__module__ == "s3fs.core"
        and not files.storage_args
        and _given(files.storage_options) <= _OPTIONS
        and _given(files.client_kwargs) <= _OF_CLIENT
        and _given(files.config_kwargs) <= _OF_CONFIG
        and _given(config.s3 or {}) <= _OF_S3
        and not (config.use_dualstack_endpoint or config.use_fips_endpoint or config.client_cert or config.proxies)
        and bool(is_signed)
    )


def _given(options: Mapping[str, Any]) -> set[str]:
    return {name for name, value in options.items() if value or name == "verify"}


def _verify(files: AbstractFileSystem) -> bool | None:
    verify = files.client_kwargs.get("verify")
    if verify is None:  # obstore would trust these certificates besides the system's, not in place of them
        own = files.session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
        return None if own else True
    return verify if isinstance(verify, bool) else None


def _proxy(url: str) -> str | None:
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _config(url: str, meta: Any, bucket: str, *, is_anonymous: bool) -> S3Config:
    """Return all options that obstore would otherwise read from the environment under its own names."""
    parts = urlsplit(url)
    style = (meta.config.s3 or {}).get("addressing_style") or "auto"
    is_hosted = style == "virtual" or (style == "auto" and "." not in bucket and bool(_AMAZON.fullmatch(parts.netloc)))
    endpoint = url.rstrip("/")
    if is_hosted:
        endpoint = endpoint.replace("://", f"://{bucket}.", 1)
    return {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "virtual_hosted_style_request": is_hosted,
        "region": meta.region_name,
        "skip_signature": is_anonymous,
        "request_payer": False,
        "s3_express": False,
    }


def _client_options(config: Any, *, verify: bool) -> ClientConfig:
    options: ClientConfig = {
        "allow_http": True,  # whether to is in the URL
        "allow_invalid_certificates": not verify,
        "timeout": timedelta(days=1),  # the reader limits the time of each range
    }
    if config.connect_timeout:
        options["connect_timeout"] = timedelta(seconds=config.connect_timeout)
    if config.read_timeout:
        options["read_timeout"] = timedelta(seconds=config.read_timeout)
    return options


_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_KIND = re.compile(r"HttpError \{\s*kind: (Connect|Request|Timeout|Interrupted)\b")
_FAREWELL_SECONDS = 0.05  # a body that arrived or was dropped leaves its thread in a fraction of that


@dataclass(frozen=True, slots=True)
class _Part:
    key: str
    version: str | None
    etag: str | None
    begin: int
    end: int

    @property
    def is_plain(self) -> bool:
        """Return whether obstore uses the key unchanged."""
        return self.key.isprintable() and {"", ".", ".."}.isdisjoint(self.key.split("/"))


async def read_object(
    files: AbstractFileSystem, path: str, etag: str | None, begin: int, end: int
) -> bytes | memoryview:
    """Return the bytes of an S3 object from ``begin`` to before ``end``, if it still bears ``etag`` or that is None.

    obstore reads them, as it needs little of the interpreter's time; its transient errors are raised as
    ``ConnectionError`` and ``TimeoutError``. s3fs reads if :func:`store_of` returns None, or if the key has empty parts
    or unprintable characters. A request that obstore cannot fulfil is repeated by s3fs, which follows a bucket to its
    region and has its own certificates: its error is raised, and if it succeeds, s3fs reads the bucket from then on.
    """
    bucket, key, version = files.split_path(path)
    part = _Part(key, version, etag, begin, end)
    store = await store_of(files, bucket) if part.is_plain and not _leaving.is_set() else None
    if store is None:
        return await _by_s3fs(files, bucket, part)
    try:
        return await _by_obstore(store, part)
    except Exception as error:  # noqa: BLE001 - it has one of its own for each refusal
        _raise_if_passing(error)
    content = await _by_s3fs(files, bucket, part)
    await give_up(files, bucket)
    return content


async def _by_s3fs(files: AbstractFileSystem, bucket: str, part: _Part) -> bytes:
    condition = ({"IfMatch": part.etag} if part.etag else {}) | ({"VersionId": part.version} if part.version else {})
    bounds = f"bytes={part.begin}-{part.end - 1}"
    call = files._call_s3  # noqa: SLF001 - the only way to a conditional read in s3fs
    response = await call("get_object", Bucket=bucket, Key=part.key, Range=bounds, **condition)
    try:
        return await response["Body"].read()  # type: ignore[no-any-return]
    finally:
        response["Body"].close()


async def _by_obstore(store: S3Store, part: _Part) -> memoryview:
    from obstore import get_async

    options: GetOptions = {"range": (part.begin, part.end)}
    if part.etag:
        options["if_match"] = part.etag
    if part.version:
        options["version"] = part.version
    answer = await _started(lambda: get_async(store, part.key, options=options))
    return memoryview(await _started(answer.bytes_async))


def _raise_if_passing(error: Exception) -> None:
    """Raise ``ConnectionError`` or ``TimeoutError`` if the text of ``error`` shows that it is transient.

    obstore has no types for these errors.

    The server's answer is not quoted, as it may contain a signature.
    """
    text = str(error)
    if status := _STATUS.search(text):
        if int(status[1]) in TRANSIENT_STATUSES:
            msg = f"the server answered {status[1]}"
            raise ConnectionError(msg) from None
        return
    kind = _KIND.search(text)
    if kind is None or "certificate" in text[kind.end() :].lower():
        return
    if kind[1] == "Timeout":
        msg = "the server was silent for too long"
        raise TimeoutError(msg) from error
    msg = "the connection was refused or lost"
    raise ConnectionError(msg) from error


_flying: set[asyncio.Future[Any]] = set()
_leaving = Event()


def _started(call: Callable[[], Any]) -> asyncio.Future[Any]:
    if _leaving.is_set():
        raise CancelledError
    future: asyncio.Future[Any] = call()
    _flying.add(future)
    future.add_done_callback(_flying.discard)
    _part_in_time(future.get_loop())
    return future


@cache
def _part_in_time(loop: asyncio.AbstractEventLoop) -> None:
    atexit.register(_leave, loop)


def _leave(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel pending requests: an obstore thread that returns while the interpreter ends aborts the process."""
    _leaving.set()
    with suppress(RuntimeError):  # a loop that is closed
        loop.call_soon_threadsafe(_drop)
    time.sleep(_FAREWELL_SECONDS)


def _drop() -> None:
    for future in tuple(_flying):
        future.cancel()
