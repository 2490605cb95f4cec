"""``python -m holdfast``: the command line."""

from holdfast.bootstrap.cli.main import run

run()
