"""Trains again and again with a bit of one reading of the text wrong, and writes what came of it, a JSON line each.

python flip_source_driver.py WAY FOLDER, with flip_reads.c preloaded. WAY is cache, stream, mixture or parts, behind s3-
if the text is in an object store. With ranks- before it two processes train together; of the readings of each, every
fourth is wrong once, as a training of two takes long. The first line is of readings that are right.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from holdfast.adapters.data_source.remote_file import RemoteFile
from holdfast.bootstrap.cli.main import main as command_line
from holdfast.bootstrap.process.exit_codes import end_with
from tests.support.run_driver import HEAVY
from tests.support.s3_server import s3_server

SHIM = ctypes.CDLL(None)
_LONGEST = 100
"""Seconds after which ranks that wait for ever are ended, which is a failure."""
WORDS = ["the", "model", "reads", "text", "and", "learns", "to", "say", "what", "comes"]
SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SETTINGS = [
    *("data.sequence_length=32", "data.holdout=0.1", "tokenizer.vocabulary_size=260", "tokenizer.backend=huggingface"),
    *(f"model.config.{name}={value}" for name, value in SHAPE.items()),
    *("model.config.num_key_value_heads=1", "optimizer.batch_size=4", "optimizer.device=cpu", "monitors=[]"),
    *("optimizer.precision=fp32", "run.budget.steps=2", "state_store.every=2", "evaluation.every=0"),
    *("sample.max_new_tokens=1", "data.workers=1"),
]


class Ranges:
    """Counts the ranges that are fetched of remote files, and flips a bit of one."""

    def __init__(self) -> None:
        self.count, self.target, self.fetch = 0, -1, RemoteFile.fetch

    def install(self) -> None:
        def fetch(file: RemoteFile, begin: int, end: int) -> Future[bytes | memoryview]:
            return self.spoilt(file, begin, end)

        RemoteFile.fetch = fetch  # type: ignore[method-assign]

    def spoilt(self, file: RemoteFile, begin: int, end: int) -> Future[bytes | memoryview]:
        data = bytearray(self.fetch(file, begin, end).result(60))
        if self.count == self.target:
            data[len(data) // 2] ^= 4
        self.count += 1
        body: Future[bytes | memoryview] = Future()
        body.set_result(bytes(data))
        return body


class Trainings:
    """Trainings of one kind on the text in ``root``, each with a cache of its own."""

    def __init__(self, way: str, root: Path) -> None:
        self.root, self.ranges = root, Ranges()
        self.is_remote, self.way = way.startswith("s3-"), way.removeprefix("s3-").removeprefix("ranks-")
        (root / "text").mkdir(exist_ok=True)
        generator = random.Random(0)
        files = "abcdefgh" if way == "ranks-stream" else "ab"  # each of two ranks reads files of its own
        for name in files:
            texts = [" ".join(generator.choices(WORDS, k=60)) for _ in range(1200 // len(files))]
            (root / f"text/{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.place = str(root / "text")

    def upload(self, server: Any) -> None:
        for path in sorted((self.root / "text").iterdir()):
            server.put(f"text/{path.name}", path.read_bytes())
        self.place = f"s3://{server.bucket}/text"
        self.ranges.install()

    def data(self) -> list[str]:
        if self.way != "mixture":
            return ["data.kind=files", f"data.path={self.place}"]
        sources = {name: {"kind": "files", "path": f"{self.place}/{name}.jsonl", "weight": 1} for name in "ab"}
        return ["data.kind=mixture", f"data.sources={json.dumps(sources)}"]

    def commands(self) -> list[list[str]]:
        made = self.root / "made"
        given = [*self.data(), *SETTINGS, f"run.cache_dir={made / 'cache'}"]
        mode = "stream" if self.way == "stream" else "cache"
        train = ["train", *given, f"data.mode={mode}", f"run.dir={made / 'run'}"]
        parts = [["prepare", *given, f"--part={number}/2"] for number in (0, 1)] if self.way == "parts" else []
        return [*parts, train]

    def again(self, number: int) -> dict[str, Any]:
        made = self.root / "made"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        self.ranges.count, self.ranges.target = 0, number
        SHIM.flip_arm(os.fsencode(self.root / "text"), ctypes.c_long(-1 if self.is_remote else number))
        errors, code = io.StringIO(), 0
        for command in self.commands():
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                code = code or command_line(command)
        count = self.ranges.count if self.is_remote else SHIM.flip_count()
        SHIM.flip_arm(b"/nothing", ctypes.c_long(-1))
        found = {"number": number, "count": count, "code": code, "error": errors.getvalue() if code else ""}
        return found | {"weights": self.weights(), "stored": self.stored()}

    def on_ranks(self, number: int, rank: int) -> dict[str, Any]:
        """Train in two children of this process; the reading ``number`` of ``rank`` is wrong."""
        made = self.root / "made"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        children = [self.begin(each, port, number if each == rank else -1) for each in (0, 1)]
        codes, until = [-1, -1], time.monotonic() + _LONGEST
        while -1 in codes:
            for each, child in enumerate(children):
                if codes[each] == -1 and (ended := os.waitpid(child, os.WNOHANG))[0]:
                    codes[each] = os.waitstatus_to_exitcode(ended[1])
                elif codes[each] == -1 and time.monotonic() > until:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.05)
        counts = [int(path.read_text()) if (path := made / f"count-{each}").exists() else -1 for each in (0, 1)]
        errors = "".join((made / f"errors-{each}").read_text() for each in (0, 1)) if any(codes) else ""
        found = {"number": number, "rank": rank, "count": counts, "code": codes, "error": errors}
        return found | {"weights": self.weights(), "stored": self.stored()}

    def begin(self, rank: int, port: str, number: int) -> int:
        """Start a rank in a child; return its id."""
        if child := os.fork():
            return child
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ.update(ranks | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        code = 1
        with (self.root / f"made/errors-{rank}").open("w") as errors, contextlib.redirect_stderr(errors):
            SHIM.flip_arm(os.fsencode(self.root / "text"), ctypes.c_long(number))
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
                code = command_line(self.commands()[-1])
            (self.root / f"made/count-{rank}").write_text(str(SHIM.flip_count()))
        os._exit(code)

    def weights(self) -> str:
        files = sorted((self.root / "made/run").rglob("checkpoint-2/**/model*.safetensors"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if files else ""

    def stored(self) -> dict[str, str]:
        """Return the hashes of the tokens and tokenizers that other runs would use."""
        cache = self.root / "made/cache"
        kinds = ("tokens/**/*.bin", "tokens/*/*/*.json", "tokens/.contents/*.json", "tokenizers/*.json")
        files = {path for kind in kinds for path in cache.glob(kind)}
        return {str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main(way: str, folder: str) -> int:
    trainings = Trainings(way, Path(folder))
    with contextlib.ExitStack() as stack, (Path(folder) / "found").open("w") as file:
        if trainings.is_remote:
            trainings.upload(stack.enter_context(s3_server()))
        if way.startswith("ranks-"):
            for name in HEAVY:  # before the children begin
                importlib.import_module(name)
            first = trainings.on_ranks(-1, 0)
            points = [(number, rank) for rank in (0, 1) for number in range(rank, first["count"][rank], 4)]
            others = (trainings.on_ranks(*point) for point in points)
        else:
            first = trainings.again(-1)
            others = map(trainings.again, range(first["count"]))
        for found in itertools.chain([first], others):
            file.write(json.dumps(found) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    end_with(lambda: main(*sys.argv[1:]))
