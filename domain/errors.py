"""Errors of a training run, as types that the loop, the handlers and the command line distinguish."""

from __future__ import annotations


class TrainingError(Exception):
    """An error that stops a run; its message is one sentence for a person: the fault, its place and the remedy."""


class ConfigurationError(TrainingError):
    """The settings are invalid or cannot be carried out."""


class PluginFailed(ConfigurationError):
    """The object of another package's entry point cannot be imported or constructed."""


class DataError(TrainingError):
    """A data source or a document cannot be used."""


class TokensLost(DataError):
    """Prepared tokens are damaged or missing: a new process makes them again."""


class StateError(TrainingError):
    """A checkpoint or a run folder cannot be written, read or trusted."""


class NonFiniteState(StateError):
    """A checkpoint verifies, but its optimizer's state holds infinities or NaN: training cannot continue from it."""


class OutOfMemory(TrainingError):
    """A step did not fit into memory; parameters and optimizer are still those of the last complete step."""


class StepTorn(TrainingError):
    """Memory ran out while an update was applied: parameters and optimizer state are inconsistent until restored."""


class LeaveAtOnce(BaseException):
    """The process is to end immediately, without an error and without a save."""


class NonFiniteGradients(TrainingError):
    """A gradient was infinite or NaN; no parameter was updated."""


class RestartNeeded(TrainingError):
    """The run can continue, but only in a new process: start the same command again."""
