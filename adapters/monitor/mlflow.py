"""Sends the metrics of a run, its settings and texts about it to MLflow."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import posixpath
import re
import tempfile
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.monitor.library_tracker import LibraryTracker, Refusal, serve
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import describe, without_secrets
from holdfast.ports.monitor import EndState, NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def mlflow_tracker(tracking_uri: str | None = None, experiment: str = "holdfast") -> LibraryTracker:
    """Return a tracker with a run of ``experiment`` at ``tracking_uri``, else in ``mlflow.db`` beside the run folder.

    Metrics are sent every ten seconds and by ``flush``. They wait in the child process while the server is away; if too
    many wait, they are dropped, and ``record`` raises. MLflow cannot delete metrics: if it has later ones, ``rewind``
    continues in a new MLflow run below the first, whose tags name the former and the step. An infinity in a database of
    MLflow becomes the largest float. Notes are the artifacts ``notes/event.md`` and ``notes/sample.md``, followed by
    ``notes/sample-2.md`` and so on after a million characters. The client counts no users, prints nothing, does not
    retry, and waits at most 30 s for an answer, unless environment variables of MLflow say otherwise.
    """
    if any(find_spec(package) is None for package in ("sqlalchemy", "alembic")):
        msg = 'the monitor "mlflow" needs another package: pip install "holdfast-lm[mlflow]"'
        raise ConfigurationError(msg)
    options = {"tracking_uri": tracking_uri, "experiment": experiment}
    return LibraryTracker("mlflow", "mlflow", "holdfast.adapters.monitor.mlflow", options)


_SECONDS_TO_END = 60.0
_STATES = {EndState.FINISHED: "FINISHED", EndState.STOPPED: "KILLED", EndState.FAILED: "FAILED"}
_RUN, _CONTINUES, _AFTER = "holdfast.run_id", "holdfast.continues", "holdfast.after_step"
_COPYING = "holdfast.copying"  # an earlier version left a run of MLflow that is incomplete
_METRICS_A_CALL, _FIELDS_A_CALL = 1000, 100  # MLflow's own limits
_SECONDS_BETWEEN = 10.0
_MOST_WAITING = 200_000
_LARGEST_NOTES = 1 << 20
# The library counts its users over the network, prints addresses, and retries a call for minutes. The run sends again.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


@final
class MlflowRun:
    """One start of a run, in the run of MLflow of the earlier starts if that has no later steps.

    Metrics that MLflow does not take wait here. Every method raises ``Refusal`` if MLflow is away or refuses a call.
    """

    def __init__(self) -> None:
        self._uri = self._experiment = ""
        self._client: Any = None
        self._run: Mapping[str, Any] = {}
        self._id = ""  # of the run in MLflow
        self._is_described = False
        self._parent = os.getppid()
        self._waiting: list[Any] = []
        self._last_sent = self._last_noted = -_SECONDS_BETWEEN
        self._last_time = 0
        self._long_names: set[str] = set()
        self._notes: dict[NoteKind, list[str]] = {}  # the texts of the files of each kind
        self._notes_of = ""  # the run in MLflow whose notes of earlier starts are to be read
        self._unsent_notes: set[tuple[NoteKind, int]] = set()

    def begin(self, run: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Find the run of MLflow, or make it."""
        self._run, self._experiment = run, options["experiment"]
        self._uri = options["tracking_uri"] or os.environ.get("MLFLOW_TRACKING_URI") or ""
        with self._refusing():
            self._uri = self._uri or f"sqlite:///{_database_in(Path(run['folder']).parent)}"
            self._client = client_of(self._uri)
            self._id = self._notes_of = self._find(run["run_id"]) or self._begin_first()
            self._describe()
            self._client.update_run(self._id, status="RUNNING")

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add points, and send all every ten seconds."""
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.clear()
            msg = f"{self._place} was away for too long: metrics are dropped, and are sent again later"
            raise Refusal(msg)
        with self._refusing():
            self._waiting += self._points(step, metrics)
        if time.monotonic() - self._last_sent >= _SECONDS_BETWEEN:
            with suppress(Exception):  # they are kept, and ``flush`` reports why
                self._send()
            self._last_sent = time.monotonic()

    def note(self, step: int, kind: str, text: str) -> None:
        """Add a text, and store all every ten seconds."""
        with self._refusing():
            self._read_notes()
            readable = text.encode("utf-8", "replace").decode()
            files = self._notes.setdefault(NoteKind(kind), [""])
            if len(files[-1]) >= _LARGEST_NOTES:  # a file is sent as a whole each time
                files.append("")
            files[-1] += f"## step {step}\n\n{readable}\n\n"
            self._unsent_notes.add((NoteKind(kind), len(files) - 1))
            if time.monotonic() - self._last_noted >= _SECONDS_BETWEEN:
                self._last_noted = time.monotonic()
                self._send_notes()

    def rewind(self, step: int) -> None:
        """Continue in a new run of MLflow if the present one has metrics of later steps."""
        self._waiting = [point for point in self._waiting if _stays(point, step)]
        with self._refusing():
            self._send()
            run = self._client.get_run(self._id)
            latest = run.data.to_proto().metrics
            if not all(_stays(point, step) for point in latest):
                with suppress(Exception):  # an error of texts holds up no metrics
                    self._send_notes()
                self._client.set_terminated(self._id, _STATES[EndState.STOPPED])
                self._id, self._is_described = self._continue(self._id, step), False
                self._notes, self._notes_of, self._unsent_notes, self._long_names = {}, "", set(), set()
            elif not latest and _CONTINUES in run.data.tags:
                self._client.set_tag(self._id, _AFTER, str(step))
            self._describe()

    def flush(self) -> None:
        """Send all points, and the notes as well if MLflow takes them."""
        with self._refusing():
            self._send()
        with suppress(Exception):  # ``note`` and ``close`` report why
            self._send_notes()

    def close(self, state: str | None) -> None:
        """Send all, and store the state, None if the training process was killed or did not name it."""
        if not self._id:
            return
        with self._refusing():
            self._send()
            if state is not None:
                self._send_notes()
                self._client.set_terminated(self._id, _STATES[EndState(state)])

    @property
    def _place(self) -> str:
        return f"MLflow at {without_secrets(self._uri or '')}"

    def _find(self, run_id: str) -> str:
        """Return the id of the newest MLflow run of the run ``run_id``, empty without one."""
        where = f"tags.`{_RUN}` = '{run_id}'"
        runs = self._client.search_runs([self._experiment_id()], where, order_by=["attributes.start_time DESC"])
        continued = {run.data.tags.get(_CONTINUES) for run in runs}
        whole = [run.info.run_id for run in runs if _COPYING not in run.data.tags]
        return next((each for each in whole if each not in continued), "")

    def _begin_first(self) -> str:
        """Return the id of a new MLflow run, which continues that of the run that the folder is a copy of."""
        former = next(filter(None, map(self._find, reversed(self._run["copied_from"]))), None)
        return self._create() if former is None else self._continue(former, 0)

    def _experiment_id(self) -> str:
        if (experiment := self._client.get_experiment_by_name(self._experiment)) is None:
            is_remote = re.match(r"https?:|databricks", self._uri)
            place = None if is_remote else (Path(self._run["folder"]).parent / "mlflow-artifacts").as_uri()
            try:
                return str(self._client.create_experiment(self._experiment, artifact_location=place))
            except Exception:
                # another run may have created it at the same time
                if (experiment := self._client.get_experiment_by_name(self._experiment)) is None:
                    raise
        return str(experiment.experiment_id)

    def _create(self, **tags: str) -> str:
        tags = {_RUN: self._run["run_id"], "mlflow.source.name": "holdfast"} | tags
        made = self._client.create_run(self._experiment_id(), tags=tags, run_name=self._run["name"])
        return str(made.info.run_id)

    def _describe(self) -> None:
        """Write the settings as parameters, once; MLflow cannot change these, so that changed ones become tags."""
        if self._is_described:
            return

        from mlflow.entities import Param, RunTag

        settings = {name: cut(value, LONGEST_PARAMETER) for name, value in flat(self._run["settings"]).items()}
        known = self._client.get_run(self._id).data.params
        changed = {
            f"changed.{name}"[:250]: value for name, value in settings.items() if known.get(name, value) != value
        }
        tags = {
            **flat({"data": self._run["data"], "environment": self._run["environment"]}),
            "ranks": str(self._run["num_ranks"]),
            **changed,
        }
        new = [Param(name, value) for name, value in settings.items() if name not in known]
        for params in _batches(new, _FIELDS_A_CALL):
            self._client.log_batch(self._id, params=params)
        for some in _batches([RunTag(name, cut(value, LONGEST_TAG)) for name, value in tags.items()], _FIELDS_A_CALL):
            self._client.log_batch(self._id, tags=some)
        self._is_described = True

    def _points(self, step: int, metrics: Mapping[str, float]) -> Iterator[Any]:
        from mlflow.entities import Metric

        # a time of its own for each record: MLflow takes what is equal but for its place in the order for the same
        self._last_time = max(int(time.time() * 1000), self._last_time + 1)
        for name, value in metrics.items():
            key = encoded(name)
            if is_cut(key) and key not in self._long_names:
                self._client.set_tag(self._id, f"name.{key[-32:]}", cut(json.dumps(name), LONGEST_TAG))
                self._long_names.add(key)
            yield Metric(key, float(value), self._last_time, step)

    def _send(self) -> None:
        # an orphan must not write beside the next start of the run
        while self._waiting and os.getppid() == self._parent:
            self._client.log_batch(self._id, metrics=self._waiting[:_METRICS_A_CALL], synchronous=True)
            del self._waiting[:_METRICS_A_CALL]

    def _continue(self, former: str, step: int) -> str:
        """Return the id of a new run of MLflow for the steps after ``step`` of the run ``former``, beside it."""
        tags = self._client.get_run(former).data.tags
        return self._create(
            **{_CONTINUES: former, _AFTER: str(step), "mlflow.parentRunId": tags.get("mlflow.parentRunId", former)}
        )

    def _read_notes(self) -> None:
        """Read the notes of earlier starts, once."""
        if not (source := self._notes_of):
            return
        present = {file.path for file in self._client.list_artifacts(source, "notes")}
        with tempfile.TemporaryDirectory() as folder:
            for kind in NoteKind:
                files: list[str] = []
                while (path := _path(kind, len(files))) in present:
                    file = Path(self._client.download_artifacts(source, path, folder))
                    files.append(file.read_text(encoding="utf-8"))
                self._notes |= {kind: files} if files else {}
        self._notes_of = ""

    def _send_notes(self) -> None:
        for kind, number in sorted(self._unsent_notes):
            self._client.log_text(self._id, self._notes[kind][number], _path(kind, number))
            self._unsent_notes.discard((kind, number))

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            msg = f"{self._place} {_reason(error)}"
            raise Refusal(msg) from error


def client_of(uri: str) -> Any:
    """Return a silent client; environment variables that are set already stay."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # errors are raised
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=uri)


def _database_in(folder: Path) -> Path:
    """Return the path of the database, made first if it is missing: MLflow cannot use one that is half made."""
    path = folder / "mlflow.db"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=folder) as name:
            draft = Path(name) / "draft.db"
            client_of(f"sqlite:///{draft}").search_experiments(max_results=1)
            with suppress(FileExistsError):  # another run was faster
                path.hardlink_to(draft)
    return path


def _path(kind: NoteKind, number: int) -> str:
    return f"notes/{kind}-{number + 1}.md" if number else f"notes/{kind}.md"


def _stays(point: Any, step: int) -> bool:
    return bool(0 < step >= point.step)


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def _reason(error: Exception) -> str:
    """Return the end of a sentence, the same for the same cause, so that it is reported once."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return f"cannot be reached: {type(cause).__name__}"
        cause = cause.__cause__ or cause.__context__
    return f"refused a call: {describe(error)[:300]}"


LONGEST_PARAMETER = 6000
LONGEST_TAG = 5000
_LONGEST_NAME = 250
_CUT = " ... (cut)"
_OTHER = re.compile(r"[^A-Za-z0-9_\-. /]")
_OF_PATHS = re.compile(r"[./]")
_ESCAPED = re.compile(r":([0-9a-f]+):")
_EMPTY = "::"


def encoded(name: str) -> str:
    """Return ``name`` with the characters that MLflow refuses as ``:hex:``; a colon is ``:3a:``.

    Dots and slashes are kept if ``name`` is a normal relative path, as MLflow demands. The result of a name that is too
    long for MLflow ends with a hash of the name.
    """
    if not name:
        return _EMPTY
    escaped = _OTHER.sub(_escape, name)
    if posixpath.normpath(escaped) != escaped or escaped.startswith((".", "/")):
        escaped = _OF_PATHS.sub(_escape, escaped)
    if len(escaped) > _LONGEST_NAME:
        escaped = f"{escaped[:180]}:long:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    return escaped


def decoded(name: str) -> str:
    """Return the name that ``encoded`` made ``name`` of, unless it was too long."""
    return "" if name == _EMPTY else _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def is_cut(name: str) -> bool:
    """Return whether ``encoded`` could not keep all of a name."""
    return ":long:" in name


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return nested plain data as texts, each with the names on the way to it joined by dots."""
    return {encoded(".".join(names)): text for names, text in _leaves(settings, ())}


def cut(text: str, longest: int) -> str:
    """Return ``text`` with at most ``longest`` characters, and a note if it was longer."""
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT


def _escape(match: re.Match[str]) -> str:
    return f":{ord(match[0]):x}:"


def _leaves(value: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, item in items:
        yield from _leaves(item, (*names, str(key)))
    if not items:
        yield names, value if isinstance(value, str) else json.dumps(value, default=str)


if __name__ == "__main__":
    serve(MlflowRun(), _SECONDS_TO_END)
