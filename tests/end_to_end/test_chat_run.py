"""Runs on conversations prove what they train on before their first step, and keep it."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import run_here
from tests.support.planted_chats import SPECIAL, of_a_minute, prompts, write_chats

CHATML = "data.chat.template=chatml"


def settings_of(home, *more):
    return of_a_minute(
        home,
        "run",
        f"data.path={home / 'chats.jsonl'}",
        "data.task=chat",
        "tokenizer.vocabulary_size=400",
        *("model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=1"),
        "model.num_attention_heads=2",
        "run.budget.steps=2",
        *more,
    )


@pytest.fixture
def home(tmp_path):
    write_chats(tmp_path / "chats.jsonl", prompts()[:60])
    return tmp_path


def records(home, *rows):
    (home / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_a_run_shows_what_it_trains_on_and_keeps_it(home):
    """Two rows with marks, the counts and unused fields are shown before the first step, and are kept."""
    asked = "evaluation.prompts=[Say zinc]"
    done = run_here("train", *settings_of(home, CHATML, SPECIAL, asked, "evaluation.every=2"), cwd=home)
    assert done.returncode == 0, done.stderr
    shown = done.stderr
    assert shown.index("assistant\n") < shown.index("step 1/2")
    assert "[[<answer>" in shown
    assert "row 2 of 2, trained on what is in [[ ]]" in shown
    assert "used with a warning: the field number is not used (60 records)" in shown
    kept = json.loads((home / "run/supervision.json").read_text(encoding="utf-8"))
    assert len(kept["rows"]) == 5
    counts = json.loads((home / "run/run.json").read_text(encoding="utf-8"))["supervision"][""]
    assert 0 < counts["supervised"] < counts["tokens"]
    assert kept["sentences"][0].startswith(f"trained on {counts['supervised']:,} of {counts['tokens']:,} tokens")
    report = run_here("report", str(home / "run"), "--markdown", cwd=home).stdout
    assert "## What is trained on" in report
    assert "[[<answer>" in report
    assert "<|im_start|>user\nSay zinc<|im_end|>\n<|im_start|>assistant\n" in report


def test_a_mask_that_trains_on_nothing_ends_the_run(home):
    """Replies that are all cut off leave no target: the run ends with exit code 3 before its first step."""
    cut = ("data.packing.overflow=truncate", "data.sequence_length=8")
    done = run_here("train", *settings_of(home, CHATML, SPECIAL, *cut), cwd=home)
    assert done.returncode == 3
    assert "no token is trained on: the loss mask is false everywhere" in done.stderr
    assert not (home / "run/checkpoints").exists()


def test_a_mask_that_trains_on_everything_ends_the_run(home):
    """Completions without a prompt leave no token that is not a target: the run ends with exit code 3."""
    records(home, *({"prompt": "", "completion": f"word {number}"} for number in range(40)))
    done = run_here("train", *settings_of(home, "data.task=completion"), cwd=home)
    assert done.returncode == 3
    assert "every token is trained on" in done.stderr


def test_completions_are_trained_on(home):
    """Prompts and completions need no template, and the end of each completion is trained on."""
    records(home, *({"prompt": f"{number} plus 1 is ", "completion": str(number + 1)} for number in range(60)))
    done = run_here("train", *settings_of(home, "data.task=completion"), cwd=home)
    assert done.returncode == 0, done.stderr
    assert " plus 1 is [[" in done.stderr
    assert "<|endoftext|>]]" in done.stderr
    assert "warning" not in done.stderr


def test_a_stream_is_proved_by_its_beginning(home, caplog):
    """A streamed run counts the first batches, says so and which fields are not used, and trains."""
    done = run_here("train", *settings_of(home, CHATML, SPECIAL, "data.mode=stream"), cwd=home)
    assert done.returncode == 0, done.stderr
    assert "rows at the beginning of the stream" in done.stderr
    assert "the field number is not used" in caplog.text


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_strict_run_ends_at_a_field_that_is_not_used(home, mode):
    """With data.strict a field without a meaning is an error with its place, also if the tokens are there already."""
    settings = settings_of(home, CHATML, SPECIAL, f"data.mode={mode}")
    done = run_here("train", *settings, "data.strict=true", cwd=home)
    assert done.returncode == 3
    assert "the document at position 0: the field number is not used, and data.strict is true" in done.stderr
    if mode == "cache":
        assert run_here("prepare", *settings, cwd=home).returncode == 0
        done = run_here("prepare", *settings, "data.strict=true", cwd=home)
        assert done.returncode == 3
        assert "the field number is not used, and data.strict is true" in done.stderr


def test_another_template_is_another_run(home):
    """A run that has begun is not resumed with another template, which would give other tokens: exit code 4."""
    file = home / "own.jinja"
    settings = settings_of(home, f"data.chat.template={file}")
    file.write_text("{% for m in messages %}{{ m.role + m.content + eos_token }}{% endfor %}", encoding="utf-8")
    assert run_here("train", *settings, cwd=home).returncode == 0
    file.write_text("{% for m in messages %}{{ m.role + ':' + m.content + eos_token }}{% endfor %}", encoding="utf-8")
    done = run_here("train", *settings, "run.budget.steps=3", cwd=home)
    assert done.returncode == 4
    assert "the encoding of conversations is not the one that the run" in done.stderr


def test_a_conversation_without_a_reply_is_a_record_that_cannot_be_used(home):
    """The run names its place and ends with exit code 3, or leaves it out and lists it."""
    with (home / "chats.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"messages": [{"role": "user", "content": "alone"}]}\n')
    settings = settings_of(home, "data.chat.template=plain", "data.holdout=0")
    done = run_here("train", *settings, cwd=home)
    assert done.returncode == 3
    assert "the document at position" in done.stderr
    assert "has no reply of the assistant to train on" in done.stderr
    done = run_here("train", "--fresh", *settings, "data.on_error=skip", cwd=home)
    assert done.returncode == 0, done.stderr
    [rejected] = map(json.loads, (home / "run/rejected.jsonl").read_text(encoding="utf-8").splitlines())
    assert "has no reply of the assistant to train on" in rejected["reason"]


def test_long_conversations_are_counted(home):
    """A conversation that is longer than a row is left out, and the run says how many."""
    said = [{"role": "user", "content": "Say zinc"}, {"role": "assistant", "content": "zinc " * 400}]
    with (home / "chats.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"messages": said}) + "\n")
    done = run_here("train", *settings_of(home, "data.chat.template=plain", "data.holdout=0"), cwd=home)
    assert done.returncode == 0, done.stderr
    assert "warning: 1 document is longer than data.sequence_length and left out" in done.stderr


def test_each_source_of_a_mixture_is_counted(home):
    """The counts in the run folder are by the names of the sources, and a source without a target is refused."""
    write_chats(home / "more.jsonl", prompts()[60:90])
    sources = f"data.sources={{a: {{path: {home / 'chats.jsonl'}}}, b: {{path: {home / 'more.jsonl'}}}}}"
    settings = [each for each in settings_of(home, "data.chat.template=plain") if not each.startswith("data.path")]
    done = run_here("train", *settings, "data.kind=mixture", sources, cwd=home)
    assert done.returncode == 0, done.stderr
    counts = json.loads((home / "run/run.json").read_text(encoding="utf-8"))["supervision"]
    assert set(counts) == {"a", "b"}
    assert counts["a"]["supervised"] > counts["b"]["supervised"] > 0


def test_rows_are_shown_in_advance(home):
    """The command data show prints as many rows as asked, with the settings of a run, and as JSON."""
    settings = settings_of(home, CHATML, SPECIAL)
    done = run_here("data", "show", "--rows", "2", *settings, cwd=home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained on what is in [[ ]]") == 2
    assert "<|im_start|>assistant\n[[<answer>" in done.stdout
    told = json.loads(run_here("data", "show", "--rows", "3", "--json", *settings, cwd=home).stdout)
    assert len(told["rows"]) == 3
    assert {part["is_trained"] for part in told["rows"][0][0]} == {True, False}
    assert not (home / "run").exists()


def test_a_tokenizer_without_a_template_needs_one(home):
    """The message says which settings give a template, and exit code 2 says that it is a matter of settings."""
    done = run_here("train", *settings_of(home), cwd=home)
    assert done.returncode == 2
    assert "the tokenizer has no chat template: set data.chat.template to chatml, plain or a file" in done.stderr
    done = run_here("train", *settings_of(home, CHATML), cwd=home)
    assert done.returncode == 2
    assert "no special token <|im_start|>" in done.stderr


def test_generate_replies_to_a_prompt(home):
    """A prompt is a message of the user, and --plain continues it as text."""
    settings = settings_of(home, CHATML, SPECIAL, "run.budget.steps=60", "model.num_attention_heads=4")
    assert run_here("train", *settings, cwd=home).returncode == 0
    asked = ("generate", str(home / "run"), "--prompt", "Say zinc", "--temperature", "0", "--max-new-tokens", "12")
    reply, plain = (run_here(*asked, *more, cwd=home).stdout for more in ((), ("--plain",)))
    assert not reply.startswith("Say zinc")
    assert plain.startswith("Say zinc")
