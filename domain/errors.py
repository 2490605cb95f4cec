"""Errors of a training run, as types that the loop, the handlers and the command line distinguish."""

from __future__ import annotations


class TrainingError(Exception):
    """Anything that stops a run; its message is one sentence for a person: what is wrong, where, what to do."""


class ConfigurationError(TrainingError):
    """The settings cannot be obeyed."""


class PluginFailed(ConfigurationError):
    """What an entry point of another package names cannot be imported or made."""


class DataError(TrainingError):
    """A data source or a document cannot be used."""


class TokensLost(DataError):
    """Tokens that were prepared are damaged or gone: a new process makes them again."""


class StateError(TrainingError):
    """A checkpoint or a run folder cannot be written, read or trusted."""


class NonFiniteState(StateError):
    """A checkpoint verifies, but its optimizer's state holds infinities or what is no number: it trains nothing."""


class OutOfMemory(TrainingError):
    """A step did not fit into memory; parameters and optimizer are still those of the last complete step."""


class StepTorn(TrainingError):
    """Memory ran out while an update was applied: parameters and optimizer state are inconsistent until restored."""


class LeaveAtOnce(BaseException):
    """The process is to end where it is: no error, and nothing more is saved."""


class NonFiniteGradients(TrainingError):
    """A gradient was infinite or not a number; nothing was updated."""


class RestartNeeded(TrainingError):
    """The run can go on, but only in a new process: start the same command again."""
