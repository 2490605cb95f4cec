"""Checks of the places on the network that settings name: reachable, and open to the credentials of this process."""

from __future__ import annotations

import base64
import netrc
import os
import socket
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

from holdfast.adapters.shared.network.hub_names import HUB_SCHEME, is_kept_offline
from holdfast.adapters.shared.network.retry import http_status
from holdfast.bootstrap.doctor.finding import Finding, bad, doubtful, failed, good
from holdfast.bootstrap.doctor.needed_extras import EXTRA_OF_SCHEME
from holdfast.bootstrap.stages.attach.monitors import connection_string
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.adapters.state_store.archive.object_store import ObjectStore
    from holdfast.bootstrap.doctor.named_places import DatabasePlace, DataPlace, HttpPlace, HubPlace

_AGENT = {"User-Agent": "holdfast"}
_REFUSED = (401, 403)
_MISSING = 404
_BROKEN = 500
_NETWORK = "check the network, the proxy (HTTPS_PROXY) and the name"
_OF_KEYS = ("credential", "accesskey", "signature", "forbidden", "access denied", "unauthorized")
_KEYS = {
    "s3": "give credentials that may use it (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials)",
    "gs": "give credentials that may use it (GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login)",
    "hf": "set HF_TOKEN to a token that may read it",
}
_ENDPOINTS = {"s3": f"{_NETWORK}, and AWS_ENDPOINT_URL", "gs": _NETWORK, "hf": f"{_NETWORK}, and HF_ENDPOINT"}
_ALIASES = {"s3a": "s3", "gcs": "gs"}


def check_data(place: DataPlace, reach: Callable[[str], object]) -> Finding:
    """Return whether the files of ``place`` are there; ``reach`` asks for them and raises ``DataError`` if not."""
    if place.url.startswith(HUB_SCHEME) and is_kept_offline(os.environ):
        detail = f"{place.url} is read from the hub, and HF_HUB_OFFLINE forbids asking it"
        return bad(place.setting, detail, f"unset HF_HUB_OFFLINE, or set {place.setting} to a copy on this machine")
    try:
        reach(place.url)
    except TrainingError as error:
        return _refused(place.setting, place.url, error)
    return good(place.setting, f"{place.url} is there")


def check_archive(url: str, open_store: Callable[[], ObjectStore], *, may_write: bool, may_delete: bool) -> Finding:
    """Return whether the archive at ``url`` can be used as the roles permit: a small object is written and deleted."""
    setting, key = "state_store.archive.url", f"doctor-{uuid4().hex}"
    try:
        objects = open_store()
        if not (may_write and may_delete):
            objects.info(key)
            return good(setting, f"{url} answers")
        objects.create(key, b"doctor")
        objects.remove(key)
    except TrainingError as error:
        return _refused(setting, url, error)
    return good(setting, f"objects in {url} can be written and deleted")


def check_hub(place: HubPlace, ask: Callable[[], object], *, is_offline: bool, is_cached: bool) -> Finding:
    """Return whether the hub has the repository of ``place`` for this process, or this machine its files."""
    name = f"{place.kind} {place.path}{'' if place.revision is None else f' of revision {place.revision}'}"
    if is_offline:
        if is_cached:
            return good(place.setting, f"{name} is cached on this machine, and HF_HUB_OFFLINE is set")
        detail = f"{name} is not cached on this machine, and HF_HUB_OFFLINE forbids downloading it"
        return bad(place.setting, detail, f"unset HF_HUB_OFFLINE, or set {place.setting} to a folder")
    try:
        ask()
    except Exception as error:  # noqa: BLE001  any client's error
        cause, status = _first_line(error), http_status(error)
        if status in (*_REFUSED, _MISSING):
            remedy = f"correct {place.setting}, ask its owner for access if it is gated, and set HF_TOKEN"
            return bad(place.setting, f"the hub gives no {name}: {cause}", remedy)
        if is_cached:
            detail = f"the hub does not answer ({cause}), and the files of {name} cached on this machine are used"
            return doubtful(place.setting, detail, _ENDPOINTS["hf"])
        remedy = f"{_ENDPOINTS['hf']}, or set {place.setting} to a folder"
        return bad(place.setting, f"the hub does not answer: {cause}", remedy)
    return good(place.setting, f"the hub has the {name}")


def check_server(place: HttpPlace, send: Callable[[str], tuple[int, float | None]]) -> Finding:
    """Return whether the server of ``place`` answers; a run trains without it, and its metrics are lost or late."""
    where = mask_text(place.url)
    try:
        status, _ = send(place.url.rstrip("/") + place.path)
    except OSError as error:
        remedy = f"check the network, the proxy and {place.setting}, or start the server"
        return doubtful(place.setting, f"{where} does not answer: {_first_line(error)}", remedy)
    if status in _REFUSED:
        remedy = f"give the credentials of the server ({_credentials_of(place)})"
        return doubtful(place.setting, f"{where} refuses this process with status {status}", remedy)
    if status >= _BROKEN or (status == _MISSING and place.path):
        remedy = f"check the server, and correct {place.setting}"
        return doubtful(place.setting, f"{where} answers with status {status}", remedy)
    return good(place.setting, f"{where} answers")


def check_wandb_key(url: str, path: str | None = None) -> Finding:
    """Return whether there is a key for the server of W&B at ``url``, in the environment or in ~/.netrc."""
    host = urlsplit(url).hostname or ""
    with suppress(OSError, netrc.NetrcParseError):
        if os.environ.get("WANDB_API_KEY") or netrc.netrc(path).authenticators(host):
            return good("W&B key", f"there is a key for {host}")
    remedy = "set WANDB_API_KEY, run wandb login, or set mode=offline for the monitor"
    return doubtful("W&B key", f"there is no key for {host}", remedy)


def check_database(place: DatabasePlace, ask: Callable[[str], object], *, has_recorded: bool) -> Finding:
    """Return whether the database of ``place`` answers; ``ask`` gets the connection string and raises the reason.

    A run that ``has_recorded`` in it goes on while it does not answer.
    """
    try:
        dsn = connection_string(place.dsn, place.setting)
        ask(dsn)
    except ImportError:
        return bad(place.setting, "the package psycopg is missing", 'run pip install "holdfast-lm[postgres]"')
    except ConfigurationError as error:
        return failed(place.setting, error)
    except Exception as error:  # noqa: BLE001  any error of the client
        verdict = bad if place.is_needed and not has_recorded else doubtful
        remedy = f"start the server, open its port to this machine, and correct {place.setting}"
        return verdict(place.setting, f"the database does not answer: {_first_line(error)}", remedy)
    return good(place.setting, "the database answers")


def check_ray(address: str | None, connect: Callable[[str, int], object]) -> Finding:
    """Return whether the cluster at ``address`` (RAY_ADDRESS) answers; without one Ray starts on this machine."""
    if address is None or address in ("auto", "local"):
        return good("RAY_ADDRESS", "the cluster of this machine")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        connect(host, int(port))
    except (OSError, ValueError) as error:
        remedy = "start the cluster (ray start --head), or correct RAY_ADDRESS"
        return bad("RAY_ADDRESS", f"{address} does not answer: {_first_line(error)}", remedy)
    return good("RAY_ADDRESS", f"{address} answers")


def _refused(setting: str, url: str, error: TrainingError) -> Finding:
    """Return the finding on the ``error`` of a file system; those of the settings have their own remedy."""
    detail = str(error).rpartition(": ")[0] or str(error)
    if isinstance(error.__cause__, ImportError):
        extra = EXTRA_OF_SCHEME.get(url.partition("://")[0])
        return bad(setting, detail, f'run pip install "holdfast-lm[{extra}]"') if extra else failed(setting, error)
    if isinstance(error, ConfigurationError):
        return failed(setting, error)
    return bad(setting, detail, remedy_for(setting, url, error))


def remedy_for(setting: str, url: str, error: BaseException) -> str:
    """Return what to do about ``error``, which the file system of ``url`` gave, or an error that caused it."""
    scheme = url.partition("://")[0] if "://" in url else ""
    scheme = _ALIASES.get(scheme, scheme)
    causes = [*_chain(error)]
    said = " ".join(f"{type(each).__name__} {each}" for each in causes).lower()
    if "timetooskewed" in said:
        return "set the clock of this machine (timedatectl set-ntp true)"
    if any(http_status(each) in _REFUSED for each in causes) or any(word in said for word in _OF_KEYS):
        return _KEYS.get(scheme, "give credentials that may use it")
    if any(isinstance(each, FileNotFoundError) for each in causes) or "there is no file" in said or "nosuch" in said:
        return f"correct {setting}, or create what it names"
    return _ENDPOINTS.get(scheme, _NETWORK) if scheme else f"correct {setting}"


def send_request(url: str, seconds: float, authorization: str | None = None) -> tuple[int, float | None]:
    """Return the status of the server's answer to a GET of ``url``, and its time; raises ``OSError`` without one.

    A user and password in ``url`` become the authorization, unless another is given; no redirect passes it on.
    """
    address, own = _without_user(url)
    request = Request(address, headers=_AGENT)  # noqa: S310  only http by the callers
    if (given := authorization or own) is not None:
        request.add_unredirected_header("Authorization", given)
    try:
        with urlopen(request, timeout=seconds) as answer:  # noqa: S310
            return answer.status, _time_of(answer.headers.get("Date"))
    except HTTPError as error:
        with error:
            return error.code, _time_of(error.headers.get("Date"))
    except HTTPException as error:  # it speaks another protocol
        raise OSError(str(error) or type(error).__name__) from error


def time_of_servers(
    urls: Sequence[str], send: Callable[[str], tuple[int, float | None]], clock: Callable[[], float] = time.time
) -> tuple[str, float] | None:
    """Return the host and the time, at the begin of the request, of the first server that answers with one."""
    for url in urls:
        began = clock()
        with suppress(OSError):
            _, told = send(url)
            if told is not None:
                return urlsplit(url).hostname or url, told - (clock() - began)
    return None


def ask_postgres(dsn: str, seconds: float) -> None:
    """Connect to the database of ``dsn``; raises psycopg's error, and ``ConfigurationError`` if it cannot be read."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(dsn)
    except psycopg.Error:
        msg = "what was given is no connection string (it is not shown, as it may hold a password): correct it"
        raise ConfigurationError(msg) from None
    with psycopg.connect(dsn, connect_timeout=max(2, int(seconds))) as connection:
        connection.execute("SELECT 1")


def connect_briefly(host: str, port: int, seconds: float) -> None:
    """Open a connection to ``host`` and close it; raises ``OSError`` if nothing answers."""
    with socket.create_connection((host, port), timeout=seconds):
        pass


def mlflow_authorization() -> str | None:
    """Return the header with the credentials of MLflow's client from the environment, None if there are none."""
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
    if token:
        return f"Bearer {token}"
    return _basic(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None


def _without_user(url: str) -> tuple[str, str | None]:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    name, _, password = user.partition(":")
    return parts._replace(netloc=host).geturl(), _basic(unquote(name), unquote(password))


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _credentials_of(place: HttpPlace) -> str:
    if "mlflow" in place.setting:
        return "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    return "WANDB_API_KEY" if "wandb" in place.setting else "data.lineage.token_from"


def _time_of(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def _first_line(error: BaseException) -> str:
    if isinstance(error, URLError) and isinstance(error.reason, OSError):
        error = error.reason
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
