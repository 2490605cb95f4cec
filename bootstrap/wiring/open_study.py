"""Opens the study of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.run_folder.study_folder import StudyLayout
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.metric_catalog import is_higher_better
from holdfast.domain.tuning.search_space import SearchSpace

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.bootstrap.run_folder.study_folder import StudyRecord
    from holdfast.configs.sections.tune import TuneSettings
    from holdfast.ports.study import Study

MISSING = 'tune needs another package: pip install "holdfast-lm[tune]"'


def search_rules(chosen: TuneSettings) -> Any:
    """Return the rules of a search, whose sampler and pruner take their options.

    Raises ``ConfigurationError`` without the extra ``tune``, and for options that do not fit.
    """
    try:
        rules = lazy("holdfast.adapters.study.optuna:SearchRules")(
            chosen.sampler, chosen.pruner, chosen.sampler_options or {}, chosen.pruner_options or {}
        )
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    rules.make_sampler(0)
    rules.make_pruner()
    return rules


def open_study(root: Path, record: StudyRecord, chosen: TuneSettings) -> Study:
    """Return the study in the folder ``root``, with the sampler and the pruner of ``chosen``.

    Raises the errors of ``search_rules``, and ``StateError`` if the study cannot be read.
    """
    rules, space = search_rules(chosen), SearchSpace.from_json(record.space)
    study: Study = lazy("holdfast.adapters.study.optuna:OptunaStudy")(
        StudyLayout(root).journal,
        space,
        rules,
        record.seed,
        record.parallel,
        maximizes=is_higher_better(chosen.metric),
    )
    return study
