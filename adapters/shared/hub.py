"""The Hugging Face hub: whether it can be reached, and what it refuses, in our words."""

from __future__ import annotations

import logging
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants, get_session, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECONDS_TO_ANSWER = 5.0
_SECONDS_REMEMBERED = 60.0
_log = logging.getLogger(__name__)
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def reached(path: str, revision: str | None) -> Mapping[str, bool]:
    """Return what ``from_pretrained`` is to be told beside ``path``: if no hub answers, to take the files kept here.

    Raises ``ConfigurationError`` if none are kept: the libraries would ask the hub again for half a minute.
    """
    if constants.HF_HUB_OFFLINE or Path(path).exists():
        return {}
    if _answers(constants.ENDPOINT, int(time.monotonic() / _SECONDS_REMEMBERED)):
        return {}
    if not any(isinstance(try_to_load_from_cache(path, name, revision=revision), str) for name in _FILES):
        raise ConfigurationError(_unreachable(path))
    _tell_of_kept(path)
    return {"local_files_only": True}


def refusal(error: Exception, path: str | None) -> str | None:
    """Return what the hub refuses, if that is the reason of ``error``."""
    causes = list(_chain(error))
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return f"{path} is open only to those whom its owner let in: ask there, and put a token into HF_TOKEN"
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return f"the hub has no {path}, or only for those with a token in HF_TOKEN: correct model.path"
    is_missing = any(isinstance(cause, LocalEntryNotFoundError) for cause in causes)
    if constants.HF_HUB_OFFLINE and (is_missing or "offline" in str(error).lower()):
        return f"{path} is not among the files kept on this machine, and HF_HUB_OFFLINE forbids to fetch it"
    return _unreachable(path) if is_missing else None


@cache
def _answers(endpoint: str, _time: int) -> bool:
    try:
        get_session().head(endpoint, timeout=_SECONDS_TO_ANSWER)
    except Exception:  # noqa: BLE001  whatever a client raises
        return False
    return True


@cache
def _tell_of_kept(path: str) -> None:
    _log.warning(
        "the hub did not answer within %.0f s: the files of %s kept on this machine are used, perhaps older ones",
        _SECONDS_TO_ANSWER,
        path,
    )


def _unreachable(path: str | None) -> str:
    return (
        f"the hub cannot be reached, and {path} is not among the files kept on this machine: check the network, or "
        "name a folder (HF_HUB_OFFLINE=1 uses what is kept without asking the hub)"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
