"""Conversations and completions are read from every format of files, and from datasets of Hugging Face."""

from __future__ import annotations

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.records import Limits, Reading
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.domain.data.data_files import FIRST_RULES
from holdfast.domain.training.conversation_record import (
    ChatMessage,
    Conversation,
    MessageRole,
    conversation_from,
    conversation_text,
)
from holdfast.ports.data_source import Document, Rejected
from tests.support.chat_fixtures import CONVERSATIONS, conversation
from tests.support.reading import read_all, texts_of

USER, ASSISTANT = MessageRole.USER, MessageRole.ASSISTANT
RECORDS = [*CONVERSATIONS.values()]
EXPECTED = [conversation_text(conversation(name)) for name in CONVERSATIONS]
PAIRS = [{"prompt": f"{number}? ", "completion": "für 四", "id": number} for number in range(5)]


def source_of(folder, name, content, task="chat", **options):
    (folder / name).write_bytes(content)
    return FilesDataSource([str(folder / name)], **options).with_task(task)


def jsonl(records):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def as_text(records):
    """Return records whose lists are texts in JSON, as tables of texts have them."""
    return [{name: json.dumps(value) for name, value in record.items()} for record in records]


def table(records):
    """Return a table with a column for each field of any record."""
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table({name: [record.get(name) for record in records] for name in names})


def parquet(records):
    file = io.BytesIO()
    pq.write_table(table(records), file, row_group_size=3)
    return file.getvalue()


def arrow(records):
    file = io.BytesIO()
    feather.write_feather(table(records), file, chunksize=3)
    return file.getvalue()


def separated(records):
    rows = io.StringIO()
    writer = csv.DictWriter(rows, ["messages", "conversations", "tools"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return rows.getvalue().encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", jsonl(RECORDS)),
        ("a.jsonl", jsonl(as_text(RECORDS))),
        ("a.parquet", parquet(as_text(RECORDS))),
        ("a.arrow", arrow(as_text(RECORDS))),
        ("a.csv", separated(as_text(RECORDS))),
    ],
    ids=["jsonl", "jsonl of texts", "parquet", "arrow", "csv"],
)
def test_each_format_gives_the_same_conversations(tmp_path, name, content):
    """Ten conversations of two forms are the same documents in every format, whole and in parts."""
    assert texts_of(source_of(tmp_path, name, content)) == EXPECTED
    assert texts_of(source_of(tmp_path, name, content, limits=Limits(unit_bytes=200))) == EXPECTED


@pytest.mark.parametrize(("name", "write"), [("a.parquet", parquet), ("a.arrow", arrow)])
def test_nested_columns_are_read_without_the_nulls_that_they_add(tmp_path, name, write):
    """Messages in nested columns are those of the record, though each object there has the members of all others."""
    call = {"function": {"name": "add", "arguments": {"x": 1}}}
    records = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "r"}]},
    ]
    assert texts_of(source_of(tmp_path, name, write(records))) == texts_of(
        source_of(tmp_path, "same.jsonl", jsonl(records))
    )


@pytest.mark.parametrize(("name", "write"), [("a.jsonl", jsonl), ("a.parquet", parquet), ("a.arrow", arrow)])
def test_completions_are_read_and_filtered(tmp_path, name, write):
    """A record of the task completion is its two texts, chosen by a filter and with the fields that are kept."""
    source = source_of(tmp_path, name, write(PAIRS), "completion", filter={"id": [1, 3]}).with_fields(["id"])
    documents = read_all(source)
    assert [json.loads(each.text) for each in documents] == [
        {"prompt": f"{number}? ", "completion": "für 四"} for number in (1, 3)
    ]
    assert [each.fields for each in documents] == [{"id": 1}, {"id": 3}]


def test_another_field_holds_the_messages(tmp_path):
    """The field that the settings name is read, and no other that could hold messages."""
    record = {"talk": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "messages": "x"}
    (text,) = texts_of(source_of(tmp_path, "a.jsonl", jsonl([record]), text_field="talk"))
    assert conversation_from(text) == Conversation((ChatMessage(USER, "a"), ChatMessage(ASSISTANT, "b")))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"text": "plain"}, "the record has none of the fields"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "the record holds half of a surrogate pair"),
        ({"messages": [{"role": "king", "content": "a"}]}, "message 0 has the role 'king'"),
    ],
)
def test_a_bad_record_is_rejected_with_its_place(tmp_path, record, words):
    """The good records around a bad one are read, and the reason names the line and the fault."""
    good = {"prompt": "a", "completion": "b"}
    source = source_of(tmp_path, "a.jsonl", jsonl([good, record, good]))
    first, bad, last = read_all(source)
    assert isinstance(first, Document)
    assert isinstance(last, Document)
    assert isinstance(bad, Rejected)
    assert words in bad.reason
    assert "line 2 at byte" in source.tell(source.units()[0], bad)


@pytest.mark.parametrize(("name", "content"), [("a.csv", b"id,text\n1,a\n"), ("a.parquet", parquet([{"text": "a"}]))])
def test_a_table_without_messages_is_rejected(tmp_path, name, content):
    """The reason names the columns that are there and the setting."""
    (rejected,) = read_all(source_of(tmp_path, name, content))
    assert "there is none of the columns 'messages', 'conversations'" in rejected.reason
    assert "data.text_field" in rejected.reason


@pytest.mark.parametrize(("task", "names"), [("completion", "prompt and completion"), ("preference", "rejected")])
def test_a_table_of_other_names_is_told_the_names(tmp_path, task, names):
    """Columns that no setting can map are to be renamed; data.text_field would not help."""
    (rejected,) = read_all(source_of(tmp_path, "a.csv", b"Frage,Antwort\n1,a\n", task))
    assert "only 'Frage', 'Antwort': call" in rejected.reason
    assert rejected.reason.endswith(names)
    assert "data.text_field" not in rejected.reason


def test_fields_that_are_not_used_are_warnings(tmp_path):
    """What a record says beside its conversation comes with the document, but for fields that are asked for."""
    said = {"role": "assistant", "content": "b", "mood": "good"}
    record = {"messages": [{"role": "user", "content": "a"}, said], "id": 1, "source": "x", "kept": "y"}
    source = source_of(tmp_path, "a.jsonl", jsonl([record]), filter={"source": "x"}).with_fields(["kept"])
    (document,) = read_all(source)
    assert document.warnings == ("the field id is not used", "the field messages[].mood is not used")
    pair = {"prompt": "a", "chosen": said, "rejected": "c", "tools": [{"name": "f"}], "margin": 1}
    (document,) = read_all(source_of(tmp_path, "b.jsonl", jsonl([pair]), "preference"))
    assert document.warnings == ("the field margin is not used", "the field chosen[].mood is not used")
    (document,) = read_all(source_of(tmp_path, "c.jsonl", jsonl([{**PAIRS[0], "system": "s"}]), "completion"))
    assert document.warnings == ("the field id is not used", "the field system is not used")


def test_a_run_reads_its_records_by_the_rules_that_it_began_with(tmp_path):
    """By the first rules other marks than weight and other names of a text have no meaning, and a usual record has."""
    marked = {"role": "assistant", "content": "b", "train": False, "tool_calls": None}
    record = {"messages": [{"role": "user", "text": "a"}, marked, {**marked, "weight": 0}], "loss_mask": "?"}
    latest = source_of(tmp_path, "a.jsonl", jsonl([record]))
    former = FilesDataSource([str(tmp_path / "a.jsonl")]).with_reading(Reading(rules=FIRST_RULES)).with_task("chat")
    (document,) = read_all(former)
    said = conversation_from(document.text).messages
    assert [(each.text, each.is_trained) for each in said] == [("", True), ("b", True), ("b", False)]
    assert document.warnings == ()
    assert former.fingerprint() != latest.fingerprint()
    assert isinstance(read_all(latest)[0], Rejected)
    usual = source_of(tmp_path, "b.jsonl", jsonl(RECORDS))
    assert texts_of(usual.with_reading(Reading(rules=FIRST_RULES))) == texts_of(usual) == EXPECTED


def test_the_task_belongs_to_the_fingerprint(tmp_path):
    """A file read as text, as chats and as completions has three fingerprints, and as text the one that it had."""
    plain = FilesDataSource([str(tmp_path / "a.jsonl")])
    (tmp_path / "a.jsonl").write_bytes(jsonl(PAIRS))
    tasks = [plain.with_task(task).fingerprint() for task in ("text", "chat", "completion")]
    assert len(set(tasks)) == 3
    assert tasks[0] == plain.fingerprint()


def test_a_dataset_of_hugging_face_is_read(tmp_path):
    """A saved dataset with nested messages gives the same documents as a file."""
    datasets = pytest.importorskip("datasets")
    records = [CONVERSATIONS[name] for name in ("single", "turns")]
    datasets.Dataset.from_list(records).save_to_disk(str(tmp_path / "saved"))
    source = HuggingfaceDataSource(str(tmp_path / "saved")).with_task("chat")
    assert texts_of(source) == [conversation_text(conversation(name)) for name in ("single", "turns")]
