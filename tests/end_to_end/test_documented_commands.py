"""The commands that the documentation prints, taken from its files."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.util import find_spec

import pytest
from accelerate.commands.launch import launch_command_parser

from holdfast.bootstrap.cli.main import _parser
from holdfast.bootstrap.process.torchrun import torchrun_parser
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import ROOT, corpus, next_commands, run_here, tiny
from tests.support.printed_commands import CALL, printed, words_of

READING = {"generate", "evaluate", "inspect", "explain", "config"}
"""What a run of seconds can show; test_documented_pages.py runs the others."""
OTHERS = {
    "python examples/fastapi_service.py runs": "test_http_service.py runs it",
    "python -m venv .venv && . .venv/bin/activate": "Python's own",
    "pre-commit install": "changes the checkout",
    "python scripts/check_lowest_versions.py record": "test_lowest_versions.py runs it",
    "python checkpoint/zero_to_fp32.py checkpoint checkpoint-joined --safe_serialization": "DeepSpeed's own script",
    "cp config.json checkpoint-joined": "the system's own",
    "python make_dump.py": "run by test_data_tutorial.py",
    "python make_text.py": "run by test_tutorial.py",
    "python make_texts.py": "run by test_own_text.py",
    "python make_books.py": "run by test_adapter_page.py",
    "python train_with_log.py run.name=logged run.budget.steps=4 state_store.every=2 data.kind=zip "
    "data.options.path=books": "run by test_adapter_page.py",
    "python damage.py": "run by test_survive_page.py",
    "HEAD=localhost; export HEAD": "the shell's own",
    "python -m http.server -d build/site": "Python's own",
    "python ask.py": "run by test_data_tutorial.py and test_tutorial.py",
    "openssl rand -base64 32 > run.key && chmod 600 run.key": "run by test_documented_pages.py",
}
"""Commands of other programs, and why they are not looked at here."""
STANDS_FOR = {
    "COMMAND": "train",
    **dict.fromkeys(("run.yaml", "configs/NAME.yaml"), "configs/quickstart.yaml"),
    **dict.fromkeys(
        ("small.yaml", "march.yaml", "april.yaml", "rules.yaml", "own.yaml", "mine.yaml", "trainer.yaml"),
        "configs/quickstart.yaml",
    ),
}
NAMED = {"VERSION", "SETTINGS"}
"""What stands for a version or for any settings where a command takes both."""
VARIABLES = re.compile(r"((?:\w+=(?:\$\(.*?\)|\S+) ?)+)(?:$|(?=(?:holdfast|python) ))")

COMMANDS = list(printed())
OURS = [each for each in COMMANDS if words_of(each.text) and (CALL.search(each.text) or each.is_short)]
LAUNCHED = [each for each in COMMANDS if re.search(r"(?<!launch )\b(torchrun|accelerate launch) ", each.text)]


def named(commands):
    """Return ``commands`` as parameters whose ids say where each stands."""
    return [pytest.param(each, id=f"{each.page}:{each.line}") for each in commands]


def test_the_documentation_prints_commands():
    """Commands are found on several pages, in blocks and sentences: else the tests below would pass on nothing."""
    assert len(OURS) >= 50
    assert len({each.page for each in OURS}) >= 10
    assert len(LAUNCHED) >= 4


@pytest.mark.parametrize("command", named(OURS))
def test_a_printed_command_is_understood(command, monkeypatch):
    """Each printed command is one that there is, with arguments that it takes and settings that validate together."""
    monkeypatch.chdir(ROOT)  # where the configurations that are named lie
    words = [STANDS_FOR.get(word, word) for word in words_of(command.text)]
    if words[-1] in {"--help", "--version"}:
        with pytest.raises(SystemExit, match=r"^0$"):
            _parser()[0].parse_args(words)
        return
    options, others = _parser()[0].parse_known_args(words)
    assert not [other for other in others if other.startswith("-") or "=" not in other]
    settings = [word for word in [*getattr(options, "settings", []), *others] if word not in NAMED]
    assert hasattr(options, "settings") or not others
    if getattr(options, "on", None):  # short for this setting, which others belong to
        settings.insert(0, f"distributed.kind={options.on}")
    if getattr(options, "describe", False):
        settings = []  # they are names of settings then, and tried further below
    load_settings(getattr(options, "config", []), settings, variables_of(command.text))


def variables_of(text):
    """Return the variables that stand before a command, or for themselves."""
    found = VARIABLES.match(text)
    return dict(re.findall(r"(\w+)=(\$\(.*?\)|\S+)", found[1])) if found else {}


@pytest.mark.parametrize("command", named(each for each in COMMANDS if each.text.startswith("HOLDFAST_")))
def test_a_printed_variable_is_a_setting(command):
    """Each variable that is printed by itself is understood as a setting."""
    variables = variables_of(command.text)
    assert variables
    load_settings([], [], variables)


@pytest.mark.parametrize("command", named(LAUNCHED))
def test_a_launcher_understands_what_is_printed(command):
    """The launchers take the options as printed, and start Holdfast as a module."""
    words = [word for word in shlex.split(command.text) if word != "..."]
    if begins := [number for number, word in enumerate(words) if word.endswith("torchrun")]:
        options = torchrun_parser().parse_args(words[begins[0] + 1 :])
    else:
        options = launch_command_parser().parse_args(words[2:])
    assert options.module
    assert options.training_script == "holdfast"
    assert options.training_script_args[0] == "train"


@pytest.mark.parametrize("command", named(each for each in COMMANDS if "pip install" in each.text))
def test_printed_extras_exist(command):
    """Each extra that is to be installed is one of pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (what,) = re.findall(r"pip install (?:-e )?(\.|'(?:\.|holdfast-lm)\[[\w,]+\]')", command.text)
    assert set(re.findall(r"\w+", what)) - {"holdfast", "lm"} <= extras.keys()


@pytest.mark.parametrize("command", named(each for each in COMMANDS if re.search(r"\b(make|pytest) ", each.text)))
def test_printed_targets_and_tests_exist(command):
    """Each target of make, mark of pytest and file of tests that is printed is one that there is."""
    words = shlex.split(command.text)
    if words[0] == "make":
        targets = {word for word in words[1:] if not word.startswith("ARGS=")}
        assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    else:
        marks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
        assert words[1] == "-m"
        assert words[2] in {mark.partition(":")[0] for mark in marks}
        assert all((ROOT / path).is_file() for path in words[3:])


@pytest.mark.parametrize("command", named(each for each in COMMANDS if " -m benchmarks" in each.text))
def test_printed_benchmarks_exist(command):
    """Each benchmark that is printed is a module that can be run, with options that there are."""
    module, *options = shlex.split(command.text)[2:]
    assert find_spec(module)
    names = {option for option in options if option.startswith("--")}
    assert names <= {"--write", "--check", "--dsn", "--sizes", "--seconds", "--smoke", "--stale", "--against"}


def test_every_printed_command_is_looked_at():
    """No command is passed over but those of other programs that are listed, and this list names only what is there."""
    kinds = re.compile(r"pip install|\b(make|pytest|torchrun|accelerate) |-m benchmarks\b|HOLDFAST_\w+=")
    rest = {each.text for each in COMMANDS if each not in OURS and not kinds.search(each.text)}
    assert rest - {"python -m application", "python -m holdfast", "python -m holdfast.torchrun"} == OTHERS.keys()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a finished run called default."""
    folder = tmp_path_factory.mktemp("home")
    more = ["run.name=default", "run.budget.steps=2", "evaluation.every=0"]
    process = run_here("train", *tiny(corpus(folder)), *more, cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder


OF_OTHER_RUNS = {"continue-8b", "survive", "tutorial", "two-nodes", "write-an-adapter"}
"""Pages whose commands look at runs that they made, as those on ``runs/own`` do: tests of their own follow them."""
READERS = [
    each
    for each in OURS
    if each.is_complete
    and words_of(each.text)[0] in READING
    and "runs/own" not in each.text
    and each.page.removeprefix("docs/").removesuffix(".md") not in OF_OTHER_RUNS
]


@pytest.mark.parametrize("command", named(READERS))
def test_a_printed_command_that_reads_a_run_works(home, command):
    """Each printed command that looks at a run or at settings works as printed beside a run called default."""
    process = run_here(*words_of(command.text), cwd=home)
    assert process.returncode == 0, process.stderr
    assert process.stdout


def test_the_picture_of_a_run_shows_commands_that_there_are(home):
    """What the picture says to try next is understood, and works beside such a run."""
    lines = re.findall(r">([^<]*python[^<]*application[^<]*)<", (ROOT / "docs/run.svg").read_text(encoding="utf-8"))
    shown = "\n".join(lines).replace("&#160;", " ").replace("&#x27;", "'")
    for words in next_commands(shown.partition("train\n")[2]):
        assert run_here(*words, cwd=home).returncode == 0, words
