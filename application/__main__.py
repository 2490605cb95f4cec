"""``python -m application``: the command line."""

from bootstrap.cli import end_with, main

end_with(main)
