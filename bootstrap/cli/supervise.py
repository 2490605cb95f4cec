"""``train --supervise``: training in a child process that is restarted when it dies."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.cli.arguments import apply_start_options, resume_arguments
from holdfast.bootstrap.process.printing import print_line, report_line
from holdfast.bootstrap.process.program import module_called
from holdfast.bootstrap.process.supervisor import HeartbeatMonitor, Supervisor
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.fault_tolerance.restart_policy import RestartPolicy

if TYPE_CHECKING:
    import argparse


def supervise(options: argparse.Namespace) -> int:
    """Train in a child process, and restart it when it dies; return its exit code.

    Raises ``ConfigurationError`` if a launcher started this process.
    """
    if is_launched():
        msg = "--supervise starts the processes itself: leave torchrun away and set distributed.processes"
        raise ConfigurationError(msg)
    settings = load_settings(options.config, options.settings, os.environ).settings
    folder, limits = settings.run.directory, settings.recovery.supervisor
    say = report_line if options.json else print_line
    apply_start_options(options, settings, lambda line: None if options.quiet else say(line))
    supervisor = Supervisor(
        [sys.executable, "-m", module_called(), *resume_arguments(options)],
        folder,
        RestartPolicy(limits.max_restarts, limits.crash_loop, limits.first_pause_seconds, limits.longest_pause_seconds),
        HeartbeatMonitor(RunLayout(folder).heartbeats, 3 * settings.recovery.watchdog.min_seconds),
        grace_seconds=settings.recovery.grace_seconds,
        report=lambda line: report_line(f"supervisor: {line}"),
    )
    return supervisor.run()
