"""All benchmarks: ``--smoke`` tries each, ``--stale`` counts what changed since each was measured."""

import argparse
import sys

from benchmarks.smoke import try_all
from benchmarks.stale import note_changes

parser = argparse.ArgumentParser(prog="python -m benchmarks", description="All benchmarks.")
what = parser.add_mutually_exclusive_group(required=True)
what.add_argument("--smoke", action="store_true", help="try each benchmark with tiny sizes; exit 1 if one fails")
what.add_argument("--stale", action="store_true", help="write into docs/benchmarks.md what changed since")
sys.exit(try_all() if parser.parse_args().smoke else note_changes())
