"""The Hugging Face hub: its reachability, and its refusals in plain words."""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi, constants, get_session, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SECONDS_TO_ANSWER = 5.0
_SECONDS_REMEMBERED = 60.0
_followed: dict[str, Mapping[str, Any]] = {}
_log = logging.getLogger(__name__)
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def reached(path: str, revision: str | None) -> Mapping[str, Any]:
    """Return options for ``from_pretrained`` of ``path``: cached files only, if the hub does not answer.

    Within ``following`` the options are those that it was given. Raises ``ConfigurationError`` if no files are cached
    either: the libraries would retry the hub for half a minute.
    """
    if (commit := _followed.get(_name(path, revision))) is not None:
        return commit
    if constants.HF_HUB_OFFLINE or Path(path).exists():
        return {}
    if _answers(constants.ENDPOINT, int(time.monotonic() / _SECONDS_REMEMBERED)):
        return {}
    if _cached_commit(path, revision) is None:
        raise ConfigurationError(_unreachable(path))
    _warn_of_cached(path)
    return {"local_files_only": True}


def find(sources: Iterable[tuple[str, str | None]]) -> Mapping[str, Mapping[str, Any]]:
    """Return the options to load each path and revision of ``sources``, down to the commit, as JSON values.

    Raises ``ConfigurationError`` as ``reached`` does.
    """
    return {_name(path, revision): _found(path, revision) for path, revision in sources}


@contextmanager
def following(found: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Let ``reached`` return the options that another rank ``found``, so that all ranks load the same files."""
    _followed.update(found)
    try:
        yield
    finally:
        _followed.clear()


def ask(path: str, revision: str | None, *, kind: str, seconds: float) -> None:
    """Ask the hub for the repository ``path`` of ``kind``, model or dataset; raises the error of its client."""
    token = os.environ.get("HF_TOKEN") or False
    HfApi(token=token).repo_info(path, revision=revision, repo_type=kind, timeout=seconds)


def is_cached(path: str, revision: str | None) -> bool:
    """Return whether files of the model or tokenizer ``path`` are cached on this machine."""
    return _cached_commit(path, revision) is not None


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids asking the hub."""
    return bool(constants.HF_HUB_OFFLINE)


def refusal(error: Exception, path: str | None) -> str | None:
    """Return a sentence about the hub's refusal if a refusal caused ``error``, else None."""
    causes = list(_chain(error))
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return f"{path} is a gated model: ask its owner for access, and set HF_TOKEN"
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return f"the hub has no {path}, or it needs a token in HF_TOKEN: correct model.path"
    is_missing = any(isinstance(cause, LocalEntryNotFoundError) for cause in causes)
    if constants.HF_HUB_OFFLINE and (is_missing or "offline" in str(error).lower()):
        return f"{path} is not among the files cached on this machine, and HF_HUB_OFFLINE forbids downloading it"
    return _unreachable(path) if is_missing else None


def _name(path: str, revision: str | None) -> str:
    return f"{path}@{revision}"


def _found(path: str, revision: str | None) -> Mapping[str, Any]:
    if Path(path).exists():
        return {}
    options = reached(path, revision)
    is_offline = constants.HF_HUB_OFFLINE or "local_files_only" in options
    commit = _cached_commit(path, revision) if is_offline else _newest(path, revision)
    return options if commit is None else {**options, "revision": commit}


def _cached_commit(path: str, revision: str | None) -> str | None:
    """Return the commit of the cached files of ``path``, or None if there are none."""
    files = (try_to_load_from_cache(path, name, revision=revision) for name in _FILES)
    return next((Path(file).parent.name for file in files if isinstance(file, str)), None)


def _newest(path: str, revision: str | None) -> str | None:
    """Return the hub's current commit of ``path``, or None on an error, which ``from_pretrained`` then reports."""
    try:
        told = HfApi(token=os.environ.get("HF_TOKEN") or False).model_info(
            path, revision=revision, timeout=_SECONDS_TO_ANSWER
        )
    except Exception:  # noqa: BLE001  any client's error
        return None
    return told.sha


@cache
def _answers(endpoint: str, _time: int) -> bool:
    try:
        get_session().head(endpoint, timeout=_SECONDS_TO_ANSWER)
    except Exception:  # noqa: BLE001  any client's error
        return False
    return True


@cache
def _warn_of_cached(path: str) -> None:
    _log.warning(
        "the hub did not answer within %.0f s: the files of %s cached on this machine are used, which may be older",
        _SECONDS_TO_ANSWER,
        path,
    )


def _unreachable(path: str | None) -> str:
    return (
        f"the hub cannot be reached, and {path} is not among the files cached on this machine: check the network, or "
        "name a folder (HF_HUB_OFFLINE=1 uses the cached files without asking the hub)"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
