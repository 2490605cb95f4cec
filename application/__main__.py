"""``python -m application``: the command line."""

import sys

from bootstrap.cli import main

sys.exit(main())
