"""A library for ``LibraryTracker`` that appends each call to a file, and fails as its options say."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from holdfast.adapters.monitor.library_tracker import serve


class Fake:
    def begin(self, run, options):
        self._calls = Path(run["folder"]) / "calls"
        self._options = options
        self._do("begin", {"run_id": run["run_id"]})

    def record(self, **arguments):
        self._do("record", arguments)

    def note(self, **arguments):
        self._do("note", arguments)

    def rewind(self, **arguments):
        self._do("rewind", arguments)
        return self._options.get("held")

    def flush(self):
        self._do("flush", {})

    def close(self, **arguments):
        self._do("close", arguments)

    def _do(self, call, arguments):
        behaviour = self._options.get(call) if not self._is_later() else None
        with self._calls.open("a") as file:
            file.write(json.dumps([call, arguments]) + "\n")
        print("chatter")  # noqa: T201
        match behaviour:
            case "raise":
                msg = "this library is broken"
                raise RuntimeError(msg)
            case "die":
                print("cause of death", file=sys.stderr)  # noqa: T201
                os._exit(3)
            case "chatter":
                print("a line of many\n" * 10000, file=sys.stderr)  # noqa: T201
            case "slow":
                time.sleep(1.5)
            case "hang":
                time.sleep(1000)

    def _is_later(self):
        return self._calls.exists() and self._calls.read_text().count('"begin"') > 1


if __name__ == "__main__":
    serve(Fake(), 1.0)
