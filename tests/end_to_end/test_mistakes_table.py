"""A table of mistakes: each is answered by one true sentence and the documented exit code.

A row is a name, the settings that are given after those of a small run, the exit code and what the sentence must say.
``{files}`` in a setting is the folder that ``files`` fills.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from tests.support.command_line import corpus, run_here, tiny


@dataclass(frozen=True)
class Row:
    """One mistake: ``says`` are patterns that the one sentence matches, ``never`` ones that nothing shown matches."""

    name: str
    settings: tuple[str, ...]
    code: int
    says: tuple[str, ...]
    never: tuple[str, ...] = ()


READY = ("tokenizer.kind=huggingface", "tokenizer.path={files}/tokenizer")
DECODER = ("model.kind=decoder", "model.num_hidden_layers=1")
UNTRUE = ("single document", "holds text to train a tokenizer")

_SHORT = ("data.validation.fields.text.max_length=5",)
DATA = (
    ("wrong field", ("data.path={files}/content.jsonl",), ("'text' is missing; there is 'content'", "data.text_field")),
    ("wrong column", ("data.path={files}/body.parquet",), ("no column 'text', only 'body'", "data.text_field")),
    (
        "wrong field of a dataset",
        ("data.kind=huggingface", "data.path={files}/dataset"),
        ("no column 'text'", "'body'"),
    ),
    ("Latin-1", ("data.path={files}/latin.txt",), ("latin.txt: byte 1 is not UTF-8", "convert it to UTF-8")),
    ("empty text", ("data.path={files}/empty.txt",), ("empty.txt holds no text to use",)),
    ("empty records", ("data.path={files}/empty.jsonl",), ("empty.jsonl holds no text to use",)),
    ("no JSON", ("data.path={files}/bad.jsonl",), (r"bad.jsonl, line 2 at byte 17: the line is not JSON",)),
    ("no such file", ("data.path={files}/nope",), ("there is no file or folder .*/nope: check data.path",)),
    ("no match", ("data.path={files}/none/*.jsonl",), (r"no file matches .*/none/\*.jsonl",)),
    ("a list as one text", ("data.path={files},{files}/x",), (r"there is no file or folder", r"data.path=\[.*,.*/x\]")),
    (
        "no such split",
        ("data.kind=huggingface", "data.path={files}/splits", "data.split=validation"),
        ("'validation'", "the folder holds the splits 'train'"),
    ),
    (
        "all documents dropped",
        ("data.path={files}/long.jsonl", "data.packing.overflow=drop", "data.holdout=0.0"),
        ("every document has more than 64 tokens", "data.packing.overflow=split"),
    ),
    (
        "all documents dropped from a stream",
        ("data.path={files}/long.jsonl", "data.packing.overflow=drop", "data.holdout=0.0", "data.mode=stream"),
        ("every document has more than 64 tokens", "data.packing.overflow=split"),
    ),
    (
        "a text field that no record has, beside outliers",
        ("data.path={files}/long.jsonl", "data.text_field=content", "data.validation.outliers.symbols.zscore=5"),
        ("the field 'content' is missing", "set data.text_field"),
    ),
    *(
        (
            f"all records rejected, {more}",
            ("data.path={files}/long.jsonl", *_SHORT, "data.validation.max_rejected=1", *more.split()),
            (r"long.jsonl holds no text to use.*[ .]validation",),
        )
        for more in ("data.mode=cache", "data.mode=stream", "data.mode=stream data.epochs=1 data.holdout=0")
    ),
    (
        "rule for a column that a table lacks",
        ("data.path={files}/body.parquet", "data.text_field=body", "data.validation.fields.nope.min=1"),
        ("body.parquet: there is no column 'nope', only 'body'", "data.validation"),
    ),
    (
        "no such version",
        ("data.path={files}/corpus.jsonl", "data.drift.reference=nope"),
        ("there is no version 'nope' in ",),
    ),
    ("all records skipped", ("data.path={files}/content.jsonl", "data.on_error=skip"), ("content.jsonl", "text")),
)

LATE = ("training a ", "prepared ", "preparing ")  # what is said of data, after which such a mistake comes too late

MODEL = (
    (
        "no such model",
        ("model.path=./nope",),
        ("model ./nope .* there is no such folder: set model.path",),
    ),
    (
        "no such checkpoint",
        ("model.path=runs/nope/checkpoints/checkpoint-300",),
        ("model runs/nope/.* there is no such folder: set model.path",),
    ),
    (
        "longer than its positions",
        ("model.config.max_position_embeddings=32",),
        ("is 64 but .* 32 positions: shorten",),
    ),
    (
        "longer than a decoder's",
        (*DECODER, "model.max_position_embeddings=32"),
        ("is 64 but .* 32 positions: shorten",),
    ),
    ("uneven heads", ("model.config.num_attention_heads=3",), ("hidden_size, 32, is not a multiple of num_att.*, 3:",)),
    ("unknown type", ("model.config.model_type=lama",), ("has no model_type lama: did you mean llama[?]",)),
    (
        "unknown type of no likeness",
        ("model.config.model_type=x9",),
        ("has no model_type x9: .* such as llama or gpt2",),
    ),
    ("too few embeddings", ("model.config.vocab_size=100", *READY), ("has 257 ids but the model embeds 100",)),
    ("no such activation", ("model.config.hidden_act=swiglu",), ("swiglu is hidden_act=silu in a model whose MLP",)),
    ("no such field", ("model.config.hiden_size=64",), ("it has no field hiden_size: did you mean hidden_size[?]",)),
)


def _transform(kind, **options):
    return (f"data.transforms={json.dumps([{'kind': kind, 'options': options}])}",)


REJECTED = (
    (
        "too many records rejected",
        ("data.path={files}/long.jsonl", *_SHORT),
        ("validation rejected 3 of 3 records", r"validation.text.max_length \(3\)"),
    ),
    (
        "rule that stops",
        ("data.path={files}/long.jsonl", *_SHORT, "data.validation.on_violation=stop", "data.holdout=0"),
        ("long.jsonl, the document at position 0: the field 'text' .* the length .* above max_length, 5: repair",),
    ),
)

RULES = (
    ("pattern", ('data.validation.fields.text.pattern="(("',), ("pattern .* is not a regular .* that Python accepts",)),
    ("no such rule", ("data.validation.fields.text={minn: 3}",), ("'minn', which is no rule .* did you mean min[?]",)),
    ("share above 1", ("data.validation.max_rejected=2",), ("max_rejected .* must be at most 1, not 2",)),
    (
        "unique stream",
        ("data.validation.fields.id.unique=true", "data.mode=stream", *READY),
        ("unique values.*data.mode=cache",),
    ),
    ("duplicates of a stream", ("data.dedup=exact", "data.mode=stream", *READY), ("data.dedup .* data.mode=cache",)),
    ("no such dedup", ("data.dedup=fuzzy",), ("data.dedup.kind .* exact or minhash, not fuzzy",)),
    ("no such transform", ("data.transforms=[gofer_quality]",), ("did you mean gopher_quality[?]",)),
    ("no such option", _transform("gopher_quality", min_wordz=4), ("'gopher_quality' do not fit: .*'min_wordz'",)),
    (
        "an option beside the kind",
        ("data.transforms=[{kind: gopher_quality, min_words: 4}]",),
        (r"data.transforms\[0\].min_words .* is not a setting; put .* under data.transforms\[0\].options",),
    ),
    ("no such evaluation file", _transform("decontaminate", files=["/nope"]), ("/nope of .* cannot be read",)),
    ("no score function", _transform("score"), ("'score' needs function",)),
    ("no such language", _transform("language", languages=["xx"]), ("such as en or de, not 'xx'",)),
    ("rate above 1", _transform("augment", fim_rate=2), ("fim_rate .* from 0 to 1, not 2",)),
    ("no id", ("data.exclude=[zz]",), ("data.exclude names zz, which is neither an id",)),
    ("no file of ids", ("data.exclude=/nope/ids",), ("data.exclude names /nope/ids, .* no such file",)),
    ("no such ledger", ("ledger=sqlight",), ("no ledger is called 'sqlight' .* did you mean sqlite[?]",)),
    (
        "a server that refuses",
        ("ledger.kind=postgres", "ledger.dsn=postgresql://u:geheim@127.0.0.1:1/db"),
        ("the ledger in the database db at 127.0.0.1, port 1, cannot be used: .* refused",),
    ),
    (
        "a port that is text",
        ("ledger.kind=postgres", "ledger.dsn=postgresql://u:geheim@127.0.0.1:port/db"),
        ("the ledger in the database db .* cannot be used",),
    ),
    ("no such variable", ("ledger.kind=postgres", "ledger.dsn=env:NO_VARIABLE"), ("NO_VARIABLE, which is not set",)),
)

ROWS = (
    tuple(Row(name, settings, 2, says, (*LATE, "geheim")) for name, settings, says in RULES)
    + tuple(Row(name, settings, 2, says, LATE) for name, settings, says in MODEL)
    + tuple(Row(name, (*READY, *settings), 3, says) for name, settings, says in REJECTED)
    + tuple(
        Row(f"{name}, {tokenizer}", (*more, *settings), 3, says, UNTRUE)
        for name, settings, says in DATA
        for tokenizer, more in (("tokenizer trained", ()), ("tokenizer ready", READY))
    )
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with what the rows name."""
    folder = tmp_path_factory.mktemp("files")
    texts = ["one text of a few words", "another text of a few words"]
    corpus(folder)
    (folder / "content.jsonl").write_text("".join(json.dumps({"content": text}) + "\n" for text in texts))
    (folder / "long.jsonl").write_text("".join(json.dumps({"text": f"{n} x" * 400}) + "\n" for n in range(3)))
    (folder / "bad.jsonl").write_text('{"text": "good"}\n{"text": bad}\n')
    (folder / "latin.txt").write_bytes("für\n".encode("latin-1"))
    (folder / "empty.txt").write_text("")
    (folder / "empty.jsonl").write_text("")
    pq.write_table(pa.table({"body": texts}), folder / "body.parquet")
    Dataset.from_dict({"body": texts}).save_to_disk(str(folder / "dataset"))
    DatasetDict({"train": Dataset.from_dict({"text": texts})}).save_to_disk(str(folder / "splits"))
    ready_tokenizer(folder / "tokenizer")
    return folder


def ready_tokenizer(folder):
    """Write a small byte-level tokenizer into ``folder``."""
    from holdfast.adapters.tokenizer.memory import MemoryTokenizer

    folder.mkdir()
    MemoryTokenizer().write(folder)


def filled(files):
    """Return what puts the place of ``files`` into a setting."""
    return lambda setting: setting.replace("{files}", str(files))


def without_clashes(base, settings):
    """Return the settings of ``base`` that those of a row leave room for."""
    dropped = []
    if READY[0] in settings:
        dropped.append("tokenizer.vocabulary_size")
    if any(setting.startswith(("model.kind", "model.path")) for setting in settings):
        dropped.append("model.config")
    return [setting for setting in base if not setting.startswith(tuple(dropped))]


def complaint(process):
    """Return the one sentence that the user sees."""
    assert "Traceback" not in process.stderr
    lines = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, process.stderr
    return lines[0]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_mistake_is_one_true_sentence(row, files, tmp_path):
    """Each mistake of the table ends with its exit code and one sentence that says what is wrong and what to do."""
    base = tiny(files / "corpus.jsonl", f"run.cache_dir={tmp_path / 'cache'}", "evaluation.at_start=false")
    process = run_here("train", *without_clashes(base, row.settings), *map(filled(files), row.settings), cwd=tmp_path)
    assert process.returncode == row.code, process.stderr
    sentence = complaint(process)
    assert [pattern for pattern in row.says if not re.search(pattern, sentence)] == [], sentence
    assert [pattern for pattern in row.never if pattern in process.stdout + process.stderr] == []
