"""The tutorial from a base model to a served chat model, followed word for word in an empty folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.command_line import ROOT, environment
from tests.support.printed_commands import printed

PAGE = "docs/tutorial.md"
DRIVER = ROOT / "tests/support/llama_cpp_chat.py"
_FILE = re.compile(r"^`(?P<name>\w+\.py)`:\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FORM = "ship: Heron, cargo: salt, port: Oslo"
TYPED = "The Heron carries salt to Oslo.\nIn Riga the Swan was loaded with tea.\nThe Rocket carries gold to Paris.\n"
"""What the page has the reader type."""
PROMISED = {
    "python make_text.py": ["1500 records in reports.jsonl", "1000 records in chats.jsonl"],
    "generate runs/reports": ["The Heron"],
    "data show": ["<|im_start|>assistant\n", "[[ship: ", "<|im_end|>]]"],
    "generate runs/forms": [FORM],
    "chat runs/forms --terminal": [FORM, "ship: Swan, cargo: tea, port: Riga"],
    "export runs/forms forms": ["held-out loss: "],
    "python ask.py": [FORM, "ship: Swan, cargo: tea, port: Riga"],
}
"""Parts of what each command prints."""


@pytest.fixture
def own(tmp_path):
    """Return the environment of a reader whose home is empty."""
    return environment() | {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def follow(command, folder, own):
    """Run ``command`` as a shell does, and type what the page says; return what it prints."""
    process = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=own,
        input=TYPED,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert process.returncode == 0, f"{command}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}"
    return process.stdout


def serve(command, folder, own):
    """Start ``command``, open the page at the address that it prints, and end it with Ctrl-C."""
    process = subprocess.Popen(shlex.split(command), cwd=folder, env=own, text=True, stdout=subprocess.PIPE)
    try:
        address = next(found[1] for line in process.stdout if (found := re.match(r"page: (http://\S+)", line)))
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"<html" in answer.read()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def losses_of(run):
    """Return the losses of the evaluations of ``run``."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    return [each["loss"] for each in events if each.get("event") == "EvaluationCompleted"]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_tutorial_works_word_for_word(tmp_path, own):
    """Each file is written and each command run in the order of the page, and what it promises comes true."""
    pytest.importorskip("gguf")
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    files = list(_FILE.finditer(page))
    assert [file["name"] for file in files] == ["make_text.py", "ask.py"]
    for file in files:
        (tmp_path / file["name"]).write_text(file["text"], encoding="utf-8")
    commands = [each.text for each in printed() if each.page == PAGE and each.is_block]
    assert commands[0].startswith("pip install ")
    assert len(commands) == 14
    for command in commands[1:]:
        if command.endswith("chat runs/forms"):
            if find_spec("uvicorn") is not None:
                serve(command, tmp_path, own)
            continue
        output = follow(command, tmp_path, own)
        for part, promised in PROMISED.items():
            if part in command:
                assert all(words in output for words in promised), f"{command}\n{output}"
    first, *_, last = losses_of(tmp_path / "runs/reports")
    assert first > 4
    assert last < 0.6
    assert losses_of(tmp_path / "runs/forms")[-1] < 0.1
    chats = (tmp_path / "chats.jsonl").read_text(encoding="utf-8")
    assert FORM not in chats
    assert (tmp_path / "forms/generation_config.json").is_file()
    assert_llama_cpp_agrees(tmp_path / "forms-gguf/model-Q8_0.gguf")


def assert_llama_cpp_agrees(file):
    """Where there is a llama.cpp, let its server answer by the template in ``file`` and end the reply by itself."""
    assert file.is_file()
    if "LLAMA_CPP_PYTHON" not in os.environ:
        return
    command = [os.environ["LLAMA_CPP_PYTHON"], str(DRIVER), str(file), TYPED.splitlines()[0]]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1]) == [FORM, "stop"]
