"""Sends lineage events in the format of OpenLineage, to a file or a server."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final

from holdfast.domain.errors import ConfigurationError
from holdfast.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.domain.data.dataset_version import LineageDataset, LineageEvent

NAMESPACE = "holdfast"
_PRODUCER = "https://pypi.org/project/holdfast-lm"
_RETRY = {"total": 1, "backoff_factor": 0.3, "status_forcelist": [502, 503, 504], "allowed_methods": ["POST"]}


@final
class OpenLineageSink:
    """Writes each event as a line of JSON to ``file``, or posts it to the server at ``url``, one of which is given.

    ``token`` is sent to the server as a bearer token. A request is abandoned after ``timeout_seconds``. The client's
    own settings (environment variables, ``openlineage.yml``) have no effect, and nothing about the environment or the
    repository is added to an event. Raises ``ConfigurationError`` if the package is missing.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        file: Path | None = None,
        token: str | None = None,
        timeout_seconds: float = 3.0,
    ) -> None:
        if find_spec("openlineage") is None:
            msg = 'data.lineage needs another package: pip install "holdfast-lm[lineage]"'
            raise ConfigurationError(msg)
        self._url = url
        self._file = file
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._transport: Any = None

    def __call__(self, event: LineageEvent) -> None:
        """Send ``event``; raises an error of the client or of the network if that fails."""
        if self._transport is None:
            self._transport = self._open()
        self._transport.emit(_run_event(event))

    def _open(self) -> Any:
        from openlineage.client.transport.file import FileConfig, FileTransport
        from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider

        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            return FileTransport(FileConfig(str(self._file.absolute()), append=True))
        assert self._url is not None
        auth = TokenProvider({}) if self._token is None else ApiKeyTokenProvider({"api_key": self._token})
        config = HttpConfig(self._url, timeout=self._timeout_seconds, auth=auth, retry=dict(_RETRY))
        return HttpTransport(config)


def _run_event(event: LineageEvent) -> Any:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, processing_engine_run, set_producer

    set_producer(_PRODUCER)
    facets: dict[str, Any] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(__version__, "holdfast")
    }
    if event.error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(event.error, "PYTHON")
    return RunEvent(
        eventTime=event.time.isoformat(),
        run=Run(event.run_id, facets),
        job=Job(NAMESPACE, event.job),
        eventType=RunState(event.state.value),
        inputs=[InputDataset(each.namespace, each.name, _input(each), facets=_facets(each)) for each in event.inputs],
        outputs=[
            OutputDataset(each.namespace, each.name, _output(each), facets=_facets(each)) for each in event.outputs
        ],
        producer=_PRODUCER,
    )


def _facets(dataset: LineageDataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset

    facets: dict[str, Any] = {}
    if dataset.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(dataset.version)
    if dataset.fields:
        fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in dataset.fields]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields)
    return facets


def _input(dataset: LineageDataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import data_quality_metrics_input_dataset as quality

    if dataset.records is None and dataset.num_bytes is None:
        return {}
    metrics = quality.DataQualityMetricsInputDatasetFacet(
        columnMetrics={}, rowCount=dataset.records, bytes=dataset.num_bytes, fileCount=dataset.files
    )
    return {"dataQualityMetrics": metrics}


def _output(dataset: LineageDataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    if dataset.records is None:
        return {}
    return {
        "outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(
            rowCount=dataset.records, size=dataset.num_bytes, fileCount=dataset.files
        )
    }
