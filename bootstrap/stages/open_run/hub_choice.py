"""Makes all ranks of a run use the same files of the Hugging Face hub, and none where it may not be asked."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.network.hub_names import HUB_SCHEME, is_kept_offline, names_folder
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.run_folder.record_file import flatten
from holdfast.configs.rendering import dump_settings
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.sections.tokenizer import HuggingFaceTokenizerSettings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.process_group import ProcessGroup


def refuse_offline(settings: TrainSettings, replaced: Collection[str] = ()) -> None:
    """Raise ``ConfigurationError`` if HF_HUB_OFFLINE is set and ``settings`` name a URL of hf://, which no cache holds.

    No large library is imported: a command asks before it loads them. ``replaced`` are the ports whose adapter the host
    program brings.
    """
    if not is_kept_offline(os.environ):
        return
    for name, value in flatten(dump_settings(settings)).items():
        values = value if isinstance(value, list) else [value]
        url = next((each for each in values if isinstance(each, str) and each.startswith(HUB_SCHEME)), None)
        if url is not None and not (name.startswith("data.") and "data_source" in replaced):
            msg = f"{name} is {url}, which is read from the hub, and HF_HUB_OFFLINE forbids asking it: "
            raise ConfigurationError(msg + f"unset it, or set {name} to a copy on this machine")


@contextmanager
def one_hub(settings: TrainSettings, group: ProcessGroup, replaced: Collection[str] = ()) -> Iterator[None]:
    """Have all ranks use the hub as the first rank finds it: its files at one commit, or none if it does not answer.

    ``replaced`` are the ports whose adapter the host program brings. Raises ``ConfigurationError`` on each rank if the
    first rank cannot reach the files.
    """
    sources = sorted(_sources(settings, replaced), key=str)
    if group.size == 1 or not sources:
        yield
        return
    revisions = json.loads(group.gather(json.dumps(_find(sources) if group.rank == 0 else {}))[0])
    if "refused" in revisions:
        raise ConfigurationError(revisions["refused"])
    following: Any = lazy("holdfast.adapters.shared.network.hub:following")
    with following(revisions["files"]):
        yield


def _find(sources: list[tuple[str, str | None]]) -> dict[str, Any]:
    try:
        return {"files": lazy("holdfast.adapters.shared.network.hub:find")(sources)}
    except ConfigurationError as error:
        return {"refused": str(error)}


def _sources(settings: TrainSettings, replaced: Collection[str]) -> set[tuple[str, str | None]]:
    """Return path and revision of the model and the tokenizer if they may be on the hub; the same on each rank."""
    sections = {"model_factory": settings.model, "tokenizer": settings.tokenizer}
    chosen = [section for port, section in sections.items() if port not in replaced]
    named = [each for each in chosen if isinstance(each, HuggingFaceModelSettings | HuggingFaceTokenizerSettings)]
    places = {(each.path, each.revision) for each in named if each.path is not None}
    return {(path, revision) for path, revision in places if not names_folder(path)}
