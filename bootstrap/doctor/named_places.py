"""The places outside this process that settings name: data, the hub, servers and databases."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.shared.network.hub_names import is_kept_offline, names_folder
from holdfast.configs.sections.data import MixtureDataSettings, TokensDataSettings
from holdfast.configs.sections.sources import FilesSource, HuggingFaceSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.configs.settings import TrainSettings

HUB = "https://huggingface.co"
_WANDB = "https://api.wandb.ai"
_SCHEMES_OF_DISK = {"file", "local", "memory"}


@dataclass(frozen=True, slots=True)
class DataPlace:
    """A path or URL of data, the setting that names it, and the format or the revision that the settings give."""

    setting: str
    url: str
    format: str = "auto"
    is_dataset: bool = False
    revision: str | None = None

    @property
    def is_remote(self) -> bool:
        """Return whether the place is a URL of another machine, or a dataset of the hub."""
        if self.is_dataset:
            return not names_folder(self.url) and not Path(self.url).exists()
        return not is_on_disk(self.url)


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A repository of the Hugging Face hub, and the setting that names it; ``kind`` is model or dataset."""

    setting: str
    path: str
    revision: str | None
    kind: str = "model"


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """A server, the setting that names it, and the request that shows whether it takes this run."""

    setting: str
    url: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """A database of PostgreSQL; without ``is_needed`` a run trains although it does not answer."""

    setting: str
    dsn: str
    is_needed: bool


def is_on_disk(url: str) -> bool:
    """Return whether ``url`` is a path of this machine, or a URL of one."""
    return "://" not in url or url.partition("://")[0] in _SCHEMES_OF_DISK


def data_places(settings: TrainSettings) -> Sequence[DataPlace]:
    """Return the places of the data, of named sets, and of all sources of a mixture."""
    return [place for name, section in text_sections(settings) for place in _places_of(f"{name}.path", section)]


def text_sections(settings: TrainSettings) -> Sequence[tuple[str, object]]:
    """Return the sections of the data, of all sources of a mixture and of named sets, each with its name."""
    data = settings.data
    sections: list[tuple[str, object]] = [] if isinstance(data, MixtureDataSettings) else [("data", data)]
    if isinstance(data, MixtureDataSettings):
        sections += [(f"data.sources.{name}", source) for name, source in data.giving.items()]
    sections += [(f"evaluation.sets.{name}", files) for name, files in (settings.evaluation.sets or {}).items()]
    return sections


def hub_places(settings: TrainSettings) -> Sequence[HubPlace]:
    """Return the repositories that model, tokenizer and data name, as far as they are no folders of this machine."""
    sections = (("model", settings.model), ("tokenizer", settings.tokenizer))
    places: dict[tuple[str, str | None], HubPlace] = {}
    for name, section in sections:
        values = dict(section)
        path, revision = values.get("path"), values.get("revision")
        if isinstance(path, str) and not names_folder(path) and not Path(path).exists():
            places.setdefault((path, revision), HubPlace(f"{name}.path", path, revision))
    datasets = [place for place in data_places(settings) if place.is_dataset and place.is_remote]
    return [*places.values(), *(HubPlace(place.setting, place.url, place.revision, "dataset") for place in datasets)]


def http_places(settings: TrainSettings) -> Sequence[HttpPlace]:
    """Return the servers of trackers and of lineage events."""
    return [*_servers_of_trackers(settings), *_server_of_lineage(settings)]


def database_places(settings: TrainSettings) -> Sequence[DatabasePlace]:
    """Return the databases of the ledger and of the monitor ``postgres``."""
    found = []
    if settings.ledger.kind == "postgres":
        found.append(DatabasePlace("ledger.dsn", dict(settings.ledger)["dsn"], is_needed=True))
    sections = [dict(monitor) for monitor in settings.monitors if monitor.kind == "postgres"]
    return [*found, *(DatabasePlace("monitors.postgres.dsn", each["dsn"], is_needed=False) for each in sections)]


def places_with_clocks(settings: TrainSettings) -> Sequence[str]:
    """Return URLs of the servers that the settings name, whose answers carry the time."""
    urls = [place.url for place in http_places(settings)]
    urls += [HUB] if hub_places(settings) and not is_kept_offline(os.environ) else []
    archive = settings.state_store.archive
    named = [place.url for place in data_places(settings) if place.is_remote and not place.is_dataset]
    for url in (*named, *([] if archive is None else [archive.url])):
        scheme = url.partition("://")[0]
        if scheme in ("s3", "s3a"):
            own = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            urls.append(own or "https://s3.amazonaws.com")
        elif scheme in ("gs", "gcs"):
            urls.append("https://storage.googleapis.com")
        elif scheme in ("http", "https"):
            urls.append(url)
    return [*dict.fromkeys(urls)]


def _places_of(setting: str, section: object) -> Iterator[DataPlace]:
    if isinstance(section, HuggingFaceSource):
        yield DataPlace(setting, section.path, is_dataset=True, revision=section.revision)
    elif isinstance(section, FilesSource):
        yield from (DataPlace(setting, path, section.format) for path in section.path)
    elif isinstance(section, TokensDataSettings):
        yield from (DataPlace(setting, path) for path in section.path)


def _servers_of_trackers(settings: TrainSettings) -> Iterator[HttpPlace]:
    for monitor in settings.monitors:
        section = dict(monitor)
        if monitor.kind == "mlflow":
            url = section["tracking_uri"] or os.environ.get("MLFLOW_TRACKING_URI") or ""
            if url.startswith(("http://", "https://")):
                yield HttpPlace("monitors.mlflow.tracking_uri", url, "/api/2.0/mlflow/experiments/search?max_results=1")
        elif monitor.kind == "wandb" and section["mode"] == "online":
            url = section["base_url"] or os.environ.get("WANDB_BASE_URL") or _WANDB
            yield HttpPlace("monitors.wandb.base_url", url)


def _server_of_lineage(settings: TrainSettings) -> Iterator[HttpPlace]:
    lineage = settings.data.lineage
    if lineage is not None and lineage.url is not None:
        yield HttpPlace("data.lineage.url", lineage.url)
