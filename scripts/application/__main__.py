"""``python -m application``, from an installed package as in the checkout: the command line."""

from holdfast.bootstrap.cli.main import run

run()
