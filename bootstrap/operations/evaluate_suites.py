"""Evaluates a checkpoint by the benchmark suites of lm-evaluation-harness."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import tempfile
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.network.hub_names import is_kept_offline
from holdfast.bootstrap.operations.export_files import ExportOrder
from holdfast.bootstrap.operations.export_model import export
from holdfast.bootstrap.operations.named_checkpoint import place_of
from holdfast.bootstrap.run_folder.found_paths import settings_as_found
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.stages.attach.suite_process import MISSING, PACKAGE, SCRATCH, TASKS, trust_of_suites
from holdfast.bootstrap.stages.identify.data_identity import scratch_of
from holdfast.domain.errors import ConfigurationError, TrainingError
from holdfast.domain.phase import show_nothing
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.bootstrap.operations.named_checkpoint import Choice
    from holdfast.bootstrap.operations.other_data import OtherData
    from holdfast.configs.sections.evaluation import HarnessSettings
    from holdfast.domain.phase import ShowPhase

_OFFLINE = ("HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TRANSFORMERS_OFFLINE")
_NO_FILTER = "none"


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """The ``results`` of the checkpoint at ``location``, metrics by task, and the ``version`` of the harness."""

    location: str
    results: Mapping[str, Mapping[str, float]]
    version: str


def evaluate_suites(
    run: Path,
    suites: Sequence[str],
    *,
    choice: Choice,
    trusted: Mapping[str, str],
    changes: OtherData,
    show: ShowPhase = show_nothing,
) -> SuiteReport:
    """Return the results of the tasks and groups ``suites`` for a checkpoint of ``run``, in this process.

    The checkpoint is exported into a temporary folder, which the harness loads as its own command would. Settings are
    those of the run, changed by ``changes``. Raises ``ConfigurationError`` if the package is missing, if there is no
    such suite, if transformers cannot load the model, or if the folder of tasks in the record of the run is not
    ``trusted``, and ``TrainingError`` if the harness fails.
    """
    place = place_of(run, choice).path
    settings = settings_as_found(read_record(place), place)
    if not changes.sets(TASKS):
        _refuse_untrusted_tasks(run, trust_of_suites(settings), trusted)
    harness = changes.within(settings).evaluation.harness
    from holdfast.adapters.tokenizer.document_frame import leave_out_suffix

    os.environ.update(dict.fromkeys(_OFFLINE, "1") if is_kept_offline(os.environ) else {})
    os.environ["HF_DATASETS_TRUST_REMOTE_CODE"] = "0"
    show("importing lm-evaluation-harness")
    library, tasks = _library(), _tasks(suites, harness)
    scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-", dir=scratch_of(settings)))
    try:
        show("exporting the checkpoint")
        model = scratch / "model"
        order = ExportOrder(merged=settings.model.lora is not None, is_checked=False)
        location = export(run, model, order, choice=choice, trusted=trusted).location
        leave_out_suffix(model)  # the harness encodes the beginnings of texts, which a token after them would end
        show("")
        results = _results(library, tasks, model, suites, harness)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return SuiteReport(location, metrics_of(results), str(library.__version__))


def _refuse_untrusted_tasks(run: Path, asked: Mapping[str, str], trusted: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` if the folder of tasks that the record of ``run`` ``asked`` for is not trusted."""
    for name, folder in asked.items():
        if trusted.get(name) != folder:
            chosen = f"{name}={folder}"
            msg = (
                f"the settings in {run} ask for {chosen}, a folder whose tasks may contain code: to allow it add "
                f"--trust {shlex.quote(chosen)}, or name a file of yours that has it by --config"
            )
            raise ConfigurationError(msg)


def _library() -> Any:
    try:
        return import_module(PACKAGE)
    except ImportError as error:
        raise ConfigurationError(MISSING) from error


def _tasks(suites: Sequence[str], harness: HarnessSettings) -> Any:
    """Return the harness's index of tasks; raises ``ConfigurationError`` if one of ``suites`` is not in it."""
    folder = None if harness.tasks is None else expanded(harness.tasks)
    if folder is not None and not folder.is_dir():
        msg = f"evaluation.harness.tasks is {folder}, which is not a folder"
        raise ConfigurationError(msg)
    with _output_to_error():
        tasks = import_module(f"{PACKAGE}.tasks").TaskManager(include_path=None if folder is None else str(folder))
    if unknown := [name for name in suites if name not in tasks.all_tasks]:
        own = "" if folder is None else f", and neither does {folder} (evaluation.harness.tasks)"
        remedy = "" if own else ", or set evaluation.harness.tasks to the folder of your own tasks"
        msg = f"lm-evaluation-harness knows no task or group {unknown[0]!r}{own}: correct the name{remedy}"
        raise ConfigurationError(msg)
    return tasks


def _results(library: Any, tasks: Any, model: Path, suites: Sequence[str], harness: HarnessSettings) -> Any:
    logging.getLogger(PACKAGE).setLevel(logging.WARNING)
    try:
        with _output_to_error():
            return library.simple_evaluate(
                model="hf",
                model_args={"pretrained": str(model)},
                tasks=list(suites),
                num_fewshot=harness.few_shot,
                limit=harness.limit,
                batch_size=harness.batch_size,
                device=harness.device,
                task_manager=tasks,
                log_samples=False,
            )
    except Exception as error:
        msg = f"lm-evaluation-harness failed on {', '.join(suites)}: {type(error).__name__}: {error}"
        raise TrainingError(msg) from error


@contextmanager
def _output_to_error() -> Iterator[None]:
    """Let all output go to standard error, also that of C code and of other processes: only results are printed."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def metrics_of(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the numbers in the ``results`` of the harness, by task and group.

    A metric has the harness's name, with a dot and the name of its filter if it has one. Standard errors that are not
    numbers are left out.
    """
    metrics: dict[str, dict[str, float]] = {}
    for task, figures in {**results["results"], **results.get("groups", {})}.items():
        numbers = {key: value for key, value in figures.items() if "," in key and _is_number(value)}
        metrics[task] = {_metric(key): float(value) for key, value in numbers.items()}
    return metrics


def _metric(key: str) -> str:
    name, _, filtered = key.partition(",")
    return name if filtered == _NO_FILTER else f"{name}.{filtered}"


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
