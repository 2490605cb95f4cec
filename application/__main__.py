"""``python -m application``: the command line."""

from holdfast.bootstrap.cli.main import run

run()
