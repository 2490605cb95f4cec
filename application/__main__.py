"""``python -m application``: the command line."""

from bootstrap.cli import run

run()
