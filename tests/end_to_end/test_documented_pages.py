"""Each page of the documentation, followed line by line in a fresh folder."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.support.command_coverage import coverage
from tests.support.command_line import ROOT, corpus
from tests.support.followed_pages import PATH_OF_READER
from tests.support.printed_commands import printed

EXCEPTIONS = {
    "holdfast prepare data.kind=files 'data.path=s3://bucket/*.parquet' data.text_field=content": "needs a bucket",
    "holdfast train run.name=mine state_store.archive.url=s3://bucket/runs": "needs a bucket",
    "holdfast train --accept-changed-data": "needs changed data: test_data_identity.py has them",
    "holdfast data profile ~/.cache/holdfast/tokens/ID --html profile.html": "ID stands for another name",
    "holdfast data rejects ~/.cache/holdfast/encrypted-tokens/ID --key-from file:run.key": "ID stands for another name",
    "holdfast data compare ~/.cache/holdfast/tokens/LAST_MONTH ~/.cache/holdfast/tokens/ID "
    "--fail-on drift": "LAST_MONTH and ID stand for other names",
    "holdfast chat runs/default": "serves until Ctrl-C: test_chat_command.py",
    "holdfast chat runs/first runs/second": "serves until Ctrl-C: test_chat_command.py",
    "holdfast chat runs/default --step 100,150": "serves until Ctrl-C: test_chat_command.py",
    "holdfast chat runs/default --host 0.0.0.0 --token-from new": "serves until Ctrl-C",
    "holdfast chat runs/chat-lora": "serves until Ctrl-C: test_chat_command.py",
    "holdfast watch runs/default": "serves until Ctrl-C: test_watch_page.py",
    "holdfast watch runs/default --host 0.0.0.0 --token-from new": "serves until Ctrl-C",
    "holdfast data show --rows 5": "part of a command",
    "holdfast export runs/tuned ./model-bf16 --merged --format huggingface:bf16": "needs a run with "
    "adapters: test_export.py",
    "holdfast export runs/tuned ./model-int8 --merged --format torchao:int8": "needs a run with adapters: "
    "test_export_formats.py",
    "holdfast data show --rows 5 --config chat_lora.yaml data.path=chats.jsonl": "needs conversations and "
    "a model: test_fine_tuning.py",
    "holdfast train --config chat_lora.yaml data.path=chats.jsonl": "needs conversations and a model: "
    "test_fine_tuning.py",
    "holdfast data show --rows 5 --config dpo_lora.yaml data.path=pairs.jsonl": "needs preferences and "
    "a model: test_preference_run.py",
    "holdfast train --config dpo_lora.yaml data.path=pairs.jsonl": "needs preferences and a model: "
    "test_preference_run.py",
    "holdfast chat runs/dpo-lora": "serves until Ctrl-C: test_chat_command.py",
    "python -m holdfast train --on ray run.dir=/shared/runs/mine data.kind=files 'data.path=[/shared/texts]' "
    "optimizer.batch_size=256 'distributed.workers=[32, 32]' distributed.gpus_per_worker=1": "needs a cluster of 32 "
    "workers: test_train_on_ray.py",
    "HEAD=localhost; export HEAD": "its test is skipped, as it was not seen to pass: test_two_nodes.py",
    "holdfast explain checked": "its test is skipped, as it was not seen to pass: test_two_nodes.py",
    "holdfast plan --config mine.yaml --price-per-hour 2.5": "needs an 8B model: test_plan_command.py plans small ones",
    "holdfast verify-resume --config mine.yaml": "needs an 8B model: test_verify_resume_command.py",
    "holdfast train --config mine.yaml --supervise": "needs an 8B model: "
    "test_continued_adapters.py trains a small one by this configuration",
    "holdfast evaluate runs/continue-8b-lora": "needs an 8B model",
    "holdfast export runs/continue-8b-lora ./continued --merged": "needs an 8B model: test_continued_adapters.py",
    "holdfast doctor run.dir=/shared/runs/mine data.path=/shared/texts optimizer.batch_size=256": "needs "
    "a shared folder: test_doctor_command.py",
    "holdfast launch torchrun --nodes 2 run.dir=/shared/runs/mine data.path=/shared/texts "
    "optimizer.batch_size=256": "its file is compared by test_documented_job_files.py",
    "holdfast launch slurm --nodes 2 run.dir=/shared/runs/mine data.path=/shared/texts "
    "optimizer.batch_size=256 recovery.grace_seconds=120": "its file is compared by test_documented_job_files.py",
    **dict.fromkeys(
        (
            "holdfast doctor --config own.yaml",
            "holdfast plan --config own.yaml",
            "holdfast train --config own.yaml",
            'holdfast generate runs/own --prompt "The "',
            "holdfast evaluate runs/own",
            "holdfast evaluate runs/own --data test.jsonl",
        ),
        "run by test_own_text.py",
    ),
}
"""What is not run as printed, and why."""
OF_THEIR_OWN = {
    "docs/continue-8b.md": "test_continue_8b.py",
    "docs/data-tutorial.md": "test_data_tutorial.py",
    "docs/survive.md": "test_survive_page.py",
    "docs/tutorial.md": "test_tutorial.py",
    "docs/two-nodes.md": "test_two_nodes.py",
    "docs/write-an-adapter.md": "test_adapter_page.py",
}
"""Pages that another test follows, with the files that they have the reader write."""
ADDITIONS = {
    "data.epochs=3": ["run.budget.steps=3"],
    "run.budget.steps=100000": ["run.budget.steps=3"],
    "model.path=": ["run.budget.steps=3"],
    "model.config.": ["run.budget.steps=3"],
    "soak --faults 100": ["--faults", "2"],
    "tune --space": ["--trials", "2", "run.budget.steps=3", "evaluation.max_tokens=4096"],
    "tune --find-lr": ["--steps", "20"],
    "launch skypilot --gpus 8": ["optimizer.batch_size=8"],
    "--config trainer.yaml": ["run.budget.steps=3"],
}
"""What is added to the end of a command that has these words, so that it takes seconds."""
SHORT = {
    "DATA__SEQUENCE_LENGTH": "64",
    "OPTIMIZER__BATCH_SIZE": "2",
    "OPTIMIZER__DEVICE": "cpu",
    "OPTIMIZER__PRECISION": "fp32",
    "EVALUATION__AT_START": "false",
    "SAMPLE__MAX_NEW_TOKENS": "4",
}
SMALL = {
    "TOKENIZER__VOCABULARY_SIZE": "300",
    "TOKENIZER__MAX_BYTES": "100000",
    "MODEL__CONFIG__HIDDEN_SIZE": "32",
    "MODEL__CONFIG__INTERMEDIATE_SIZE": "64",
    "MODEL__CONFIG__NUM_HIDDEN_LAYERS": "1",
    "MODEL__CONFIG__NUM_ATTENTION_HEADS": "2",
    "MODEL__CONFIG__NUM_KEY_VALUE_HEADS": "2",
}
"""Settings of the environment, so weaker than those that a command names: a run of 150 steps takes seconds by them."""
PREPARATION = {
    "holdfast erase ~/.cache/holdfast/encrypted-tokens": "holdfast prepare data.cache.encryption.key_from=file:run.key",
    "holdfast prepare --finish": "holdfast prepare",
    "holdfast inspect default": "holdfast train run.name=default run.budget.steps=3",
}
"""What has to be there before a command that a page prints for another time."""
END = "<|endoftext|>"


def line_of(each):
    """Return what is run of a command: without the comment after it or what installs Holdfast, with its whole name."""
    line = each.text.partition("  #")[0].removeprefix("pip install -e . && ").rstrip()
    return f"holdfast {line}" if each.is_short else line.replace("python -m application", "holdfast")


def followed():
    """Return the commands of each page that are run: complete, ours (or of openssl), each where it stands first."""
    seen, pages = set(EXCEPTIONS), {}
    for each in printed():
        line = line_of(each)
        is_ours = re.match(r"(\w+=(\$\(.*?\)|\S+) )*holdfast ", line) is not None
        is_followed = each.is_complete and each.page not in OF_THEIR_OWN and line not in seen
        if (is_ours or line.startswith("openssl")) and is_followed:
            seen.add(line)
            pages.setdefault(each.page, []).append(line)
    return pages


FOLLOWED = followed()


def shortened(line):
    """Return ``line`` with what makes it short behind it."""
    return " ".join([line, *(word for part, more in ADDITIONS.items() if part in line for word in more)])


def variables(line, home):
    """Return the environment of a reader whose home is ``home``, with settings that make ``line`` short."""
    names_itself = any(part in line for part in ("data.kind=", "model.", "run.name="))
    settings = SHORT | ({} if "model.path=" in line else SMALL) | ({} if names_itself else {"RUN__NAME": "default"})
    kept = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    own = {"HOME": str(home), "PYTHONPATH": str(ROOT), "PATH": PATH_OF_READER, "HF_HUB_OFFLINE": "1"}
    return kept | own | {f"HOLDFAST_{name}": value for name, value in settings.items()}


def follow(line, folder):
    """Run ``line`` as a shell does; it has to end with 0."""
    process = subprocess.run(
        ["sh", "-c", shortened(line)],
        cwd=folder,
        env=variables(line, folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert process.returncode == 0, f"{line}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}"


@pytest.fixture
def folder(tmp_path):
    """Return a folder with what the pages speak of: texts, arguments of Trainer, and models from elsewhere."""
    texts = corpus(tmp_path)
    (tmp_path / "space.yaml").write_text("optimizer.learning_rate: {low: 1e-4, high: 1e-2, log: true}\n")
    (tmp_path / "texts/more").mkdir(parents=True)
    (tmp_path / "texts/more/corpus.jsonl.gz").write_bytes(gzip.compress(texts.read_bytes()))
    (tmp_path / "arguments.json").write_text('{"per_device_train_batch_size": 2, "lr_scheduler_type": "cosine"}')
    shutil.copy(texts, tmp_path / "train.jsonl")
    (tmp_path / "crawl").mkdir()
    shutil.copy(texts, tmp_path / "crawl")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core.train([str(texts)], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=[END]))
    size = core.get_vocab_size()
    gpt2 = GPT2Config(vocab_size=size, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    llama = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    for name, model in {
        "gpt2": GPT2LMHeadModel(gpt2),
        "old": GPT2LMHeadModel(gpt2),
        "llama": LlamaForCausalLM(llama),
    }.items():
        model.save_pretrained(tmp_path / name)
        core.save(str(tmp_path / name / "tokenizer.json"))
        config = {"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(config))
        if name == "old":
            (tmp_path / "old/model.safetensors").unlink()
            torch.save(model.state_dict(), tmp_path / "old/pytorch_model.bin")
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("page", "lines"), FOLLOWED.items(), ids=FOLLOWED)
def test_each_command_of_a_page_works_as_printed(page, lines, folder):
    """Followed from its first line to its last, after the first run of the README, each line of a page ends well."""
    first = "holdfast train"
    if page != "docs/encryption.md" and lines[0] != first and any("runs/default" in line for line in lines):
        follow(first, folder)
    for line in lines:
        if line in PREPARATION:
            follow(PREPARATION[line], folder)
        follow(line, folder)


def test_the_exceptions_are_printed():
    """What is listed as an exception, an addition or a preparation stands in the documentation."""
    lines = {line_of(each) for each in printed()}
    assert lines >= EXCEPTIONS.keys() | PREPARATION.keys()
    assert all(any(part in line for line in lines) for part in ADDITIONS)
    assert sum(map(len, FOLLOWED.values())) >= 30


def test_each_command_in_a_block_is_run_or_excused():
    """Each command in a block of the documentation is run by a test, or has a reason why it is not."""
    found = list(coverage())
    assert [each.command for each in found if each.by is None and not each.excuse] == []
    assert sum(each.by is not None for each in found) > sum(each.by is None for each in found)
    assert all((ROOT / "tests/end_to_end" / name).is_file() for name in OF_THEIR_OWN.values())
