"""Files of every format and place, good and bad."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.data_source.files import FilesDataSource
from adapters.data_source.listing import without_secrets
from adapters.data_source.python_library import PythonLibraryDataSource
from domain.errors import ConfigurationError, DataError

TEXTS = ["one\ntwo", "für 四 🙂", '"quotes" and \\', "last"]
PAYLOADS = {
    "txt": "".join(TEXTS).encode(),
    "jsonl": b"\n".join(json.dumps({"id": 1, "text": text}).encode() for text in TEXTS),
}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
text_files = st.lists(st.one_of(texts, st.sampled_from(["\n", "\r\n", " ", "\t\n", "x" * 40, "四" * 20, "🙂" * 9])))


@pytest.fixture
def place(request, tmp_path):
    """Return a function that puts a file into a folder of its own and returns its URL."""
    scheme = getattr(request, "param", "local")
    files = fsspec.filesystem(scheme)
    root = f"{tmp_path}/corpus"
    files.makedirs(root, exist_ok=True)

    def put(name: str, content: bytes) -> str:
        files.makedirs(f"{root}/{Path(name).parent}", exist_ok=True)
        files.pipe_file(f"{root}/{name}", content)
        return f"{root if scheme == 'local' else f'{scheme}:/{root}'}/{name}"

    yield put
    if scheme == "memory":
        files.rm(str(tmp_path), recursive=True)


def read_all(source, start=0):
    return [document for unit in source.units() for document in source.read(unit, start)]


def texts_of(source):
    return [document.text for document in read_all(source)]


def names_of(source):
    return [unit.name.rpartition("/corpus/")[2] for unit in source.units()]


def error_of(source):
    with pytest.raises(DataError) as caught:
        read_all(source)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("place", ["local", "memory"], indirect=True)
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_the_place_and_the_compression_change_no_document(place, kind, suffix):
    """A file gives the same texts and positions on a disk and elsewhere, plain and gzipped, by suffix or by name."""
    content = PAYLOADS[kind]
    packed = gzip.compress(content) if suffix else content
    by_suffix = FilesDataSource([place(f"a.{kind}{suffix}", packed)])
    by_format = FilesDataSource([place(f"b.strange{suffix}", packed)], format=kind)
    assert texts_of(by_suffix) == (TEXTS if kind == "jsonl" else ["".join(TEXTS)])
    assert read_all(by_suffix) == read_all(by_format)
    assert read_all(by_suffix)[-1].end == len(content)


@settings(deadline=None)
@given(parts=text_files, document_bytes=st.integers(4, 64), is_packed=st.booleans())
def test_the_pieces_of_a_text_make_the_text(parts, document_bytes, is_packed):
    """The pieces of a text put together are its text less blank pieces, each in bounds, and every cut resumes."""
    content = "".join(parts).encode()
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.txt.gz" if is_packed else "a.txt")
        path.write_bytes(gzip.compress(content, 1) if is_packed else content)
        source = FilesDataSource([str(path)], document_bytes=document_bytes)
        (unit,) = source.units()
        documents = list(source.read(unit))
        end = 0
        for index, document in enumerate(documents):
            assert not document.text.isspace()
            assert document.end - document.start <= document_bytes
            assert content[document.start : document.end].decode("utf-8-sig" if not document.start else "utf-8") == (
                document.text
            )
            assert is_blank(content[end : document.start])
            assert list(source.read(unit, document.end)) == documents[index + 1 :]
            end = document.end
        assert is_blank(content[end:])


def is_blank(content: bytes) -> bool:
    return not content.decode("utf-8-sig").strip()


@settings(deadline=None)
@given(
    lines=st.lists(st.one_of(texts.map(json.dumps), texts.map(partial(json.dumps, ensure_ascii=False)))), data=st.data()
)
def test_json_lines_come_back(lines, data):
    """Every text that is not blank comes back from its line, at its line's bytes, from any line's start on."""
    blank_lines = data.draw(st.lists(st.sampled_from(["", " ", "\r"]), min_size=len(lines), max_size=len(lines)))
    content = "".join(
        f'{blank}\n{{"other": 1, "text": {line}}}\n' for line, blank in zip(lines, blank_lines, strict=True)
    )
    with TemporaryDirectory() as folder:
        Path(folder, "a.jsonl").write_bytes(content.encode())
        source = FilesDataSource([folder])
        (unit,) = source.units()
        documents = list(source.read(unit))
        expected = [json.loads(line) for line in lines]
        assert [document.text for document in documents] == [text for text in expected if text.strip()]
        for index, document in enumerate(documents):
            assert json.loads(content.encode()[document.start : document.end])["text"] == document.text
            assert list(source.read(unit, document.end)) == documents[index + 1 :]


def test_a_text_is_cut_behind_lines(place):
    """A piece ends behind a line, in a longer line behind a character, and white space alone is no document."""
    source = FilesDataSource([place("a.txt", "ab\ncd\nefgh\n      \n      \n四四四四".encode())], document_bytes=8)
    assert texts_of(source) == ["ab\ncd\n", "efgh\n", "四四", "四四"]


def test_a_byte_order_mark_is_no_text(place):
    """The mark that some programs put before UTF-8 is not part of the first document."""
    sources = [
        FilesDataSource([place("a.txt", b"\xef\xbb\xbftext")]),
        FilesDataSource([place("a.jsonl", b'\xef\xbb\xbf{"text": "text"}\n')]),
        FilesDataSource([place("b.jsonl", '{"text": "\ufeffin the record"}'.encode())]),
    ]
    assert [texts_of(source) for source in sources] == [["text"], ["text"], ["\ufeffin the record"]]


@pytest.mark.parametrize("place", ["local", "memory"], indirect=True)
def test_a_folder_gives_its_files_with_a_known_suffix(place):
    """A folder gives all it holds, also deep below, but no unknown suffixes, nothing hidden, nothing excluded."""
    for name in (
        "b/c/d.md",
        "a.txt.gz",
        "x.png",
        ".git/e.txt",
        ".hidden.txt",
        "drafts/f.txt",
        "b/drafts.txt",
        "g.JSONL",
    ):
        url = place(name, b"")
    folder = url.removesuffix("/g.JSONL")
    assert names_of(FilesDataSource([folder], exclude=["drafts"])) == [
        "a.txt.gz",
        "b/c/d.md",
        "b/drafts.txt",
        "g.JSONL",
    ]
    assert names_of(FilesDataSource([folder + "/"], exclude=["b/*.txt", "*.gz"])) == [
        "b/c/d.md",
        "drafts/f.txt",
        "g.JSONL",
    ]


@pytest.mark.parametrize("place", ["local", "memory"], indirect=True)
def test_a_glob_gives_what_it_matches(place):
    """One star stays in a folder, two go deeper, several paths are put together, and no file comes twice."""
    for name in ("a.txt", "b.txt", "c/d.txt", "c/e/f.txt", ".g.txt"):
        url = place(name, b"text")
    folder = url.removesuffix("/.g.txt")
    assert names_of(FilesDataSource([f"{folder}/*.txt"])) == ["a.txt", "b.txt"]
    assert names_of(FilesDataSource([f"{folder}/*/*.txt"])) == ["c/d.txt"]
    assert names_of(FilesDataSource([f"{folder}/**/*.txt"])) == ["a.txt", "b.txt", "c/d.txt", "c/e/f.txt"]
    assert names_of(FilesDataSource([f"{folder}/.*.txt"])) == [".g.txt"]
    assert names_of(FilesDataSource([f"{folder}/[bc].txt", f"{folder}/b.txt", f"{folder}/c"])) == [
        "b.txt",
        "c/d.txt",
        "c/e/f.txt",
    ]


def test_a_name_with_glob_characters_is_a_name(place):
    """A file that exists is taken by its name, whatever that looks like."""
    place("a1.txt", b"wrong")
    assert texts_of(FilesDataSource([place("a[1].txt", b"right")])) == ["right"]


def test_links_to_folders_are_followed(place, tmp_path):
    """A corpus put together from links is read, and a link that leads back up does not trap the search."""
    real = Path(place("real/a.txt", b"text")).parent
    corpus = tmp_path / "linked"
    corpus.mkdir()
    (corpus / "part").symlink_to(real)
    (real / "up").symlink_to(corpus)
    assert [unit.name for unit in FilesDataSource([str(corpus)]).units()] == [f"{corpus}/part/a.txt"]


def test_a_link_to_nothing_is_an_error(tmp_path):
    """A file that is missing behind a link is not left out silently."""
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone.txt")
    assert "b.txt" in error_of(FilesDataSource([str(tmp_path)]))


@pytest.mark.parametrize("name", ["none/*.txt", "none.txt", "none", ""])
def test_a_path_that_matches_nothing_is_named(tmp_path, name):
    """Where there is no file the error says what was looked for."""
    (tmp_path / "a.png").write_bytes(b"")
    path = f"{tmp_path}/{name}"
    assert f"no file matches {path}" in error_of(FilesDataSource([path]))


def test_every_path_must_match(place, tmp_path):
    """One path that matches nothing is an error even if others match."""
    assert "none.txt" in error_of(FilesDataSource([place("a.txt", b"text"), f"{tmp_path}/none.txt"]))


def test_an_unknown_suffix_asks_for_the_format(place):
    """A file that is named but whose suffix says nothing is an error that names it and the setting."""
    message = error_of(FilesDataSource([place("a.dat", b"text")]))
    assert "a.dat" in message
    assert "data.format" in message


def test_a_missing_package_is_named(monkeypatch):
    """A scheme whose package is not installed says how to install it."""
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(ConfigurationError, match="pip install adlfs"):
        FilesDataSource(["abfs://container/a.txt"]).units()


def test_an_unknown_scheme_is_named_without_its_password():
    """A scheme that fsspec does not know is an error, in which no password is shown."""
    message = error_of(FilesDataSource(["nowhere://user:secret@host/a.txt"]))
    assert "nowhere://" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("url", "rest"),
    [
        ("s3://KEY:aB/cD+9@bucket/a.txt", "bucket/a.txt"),
        ("https://me:aB/cD+9@host:8080/a.txt", "host:8080/a.txt"),
        ("https://host/a.txt?part=1&X-Amz-Signature=aB/cD+9&more=2", "more=2"),
    ],
)
def test_urls_are_named_without_their_secrets(url, rest):
    """A password with a slash in it and the signature of a signed URL are left out; the rest of the URL stays."""
    assert "aB/cD" not in without_secrets(url)
    assert without_secrets(url).endswith(rest)


def test_units_are_named_without_their_secrets():
    """A file system whose paths are whole URLs, as those of HTTP are, gives units whose names hold no password."""

    class WholeUrls(MemoryFileSystem):
        protocol = "whole"
        store = {"whole://me:hidden@host/a.txt": MemoryFile(None, "a.txt", b"text")}  # noqa: RUF012  as fsspec has it

        @classmethod
        def _strip_protocol(cls, path):
            return path

        def info(self, path, **_):
            return {"name": path, "size": 4, "type": "file"}

    fsspec.register_implementation("whole", WholeUrls, clobber=True)
    source = FilesDataSource(["whole://me:hidden@host/a.txt"])
    (unit,) = source.units()
    assert "hidden" not in unit.name
    assert [document.text for document in source.read(unit)] == ["text"]


BAD_LINES = {
    "not JSON": (b"{text: 1}", "not JSON"),
    "too deep": (b"[" * 100_000, "not JSON"),
    "huge number": (b'{"text": ' + b"1" * 5000 + b"}", "not JSON"),
    "a list": (b'["text"]', "a list, not a JSON object"),
    "text alone": (b'"text"', "text, not a JSON object"),
    "no such field": (b'{"id": 1, "content": "x"}', "'text' is missing; there is 'id', 'content': set data.text_field"),
    "no field": (b"{}", "no field at all"),
    "null": (b'{"text": null}', "'text' holds null, not text"),
    "half a pair": (b'{"text": "ab\\ud800"}', "\\ud800"),
    "Latin-1": (b'{"text": "f\xfcr"}', "byte 34 is not UTF-8"),
    "UTF-16": ('{"text": "x"}'.encode("utf-16"), "not UTF-8"),
    "long": (b'{"text": "' + b"x" * 200_000 + b'"}', "longer than 150,000 bytes"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named(place, case):
    """An error tells file, byte and line of a record that cannot be used, what is wrong, and comes only there."""
    line, problem = BAD_LINES[case]
    content = b'{"text": "good"}\n\n  \n\n\n' + line + b"\n"
    source = FilesDataSource([place("bad.jsonl", content)], line_bytes=150_000)
    (unit,) = source.units()
    reading = source.read(unit)
    assert next(reading).text == "good"
    with pytest.raises(DataError) as caught:
        next(reading)
    message = str(caught.value)
    assert "bad.jsonl" in message
    assert problem in message
    assert "not UTF-8" in problem or "line 6 at byte 23" in message


def test_another_text_field_may_be_chosen(place):
    """The field that holds the text is a choice."""
    source = FilesDataSource([place("a.jsonl", b'{"content": "x", "text": 5}')], text_field="content")
    assert texts_of(source) == ["x"]


BAD_FILES = {
    "Latin-1.txt": (b"good\nf\xfcr", "byte 6 is not UTF-8"),
    "cut.txt": ("good 四".encode()[:-1], "byte 5 is not UTF-8"),
    "zeros.txt": (b"good\n\0", "NUL at byte 5"),
    "UTF-16.txt": ("text".encode("utf-16"), "byte 0 is not UTF-8"),
    "program.py": (b"\x7fELF\x02\x01\x01\0\0", "NUL at byte 7"),
    "plain.txt.gz": (b"no gzip", "truncated or damaged gzip file"),
    "short.txt.gz": (gzip.compress(os.urandom(900).hex().encode())[:-20], "truncated or damaged gzip file"),
    "flipped.jsonl.gz": (gzip.compress(b'{"text": "x"}')[:-8] + bytes(8), "truncated or damaged gzip file"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named(place, name):
    """A binary file, another encoding and a damaged archive give one sentence that names the file and the place."""
    content, problem = BAD_FILES[name]
    message = error_of(FilesDataSource([place(name, content)]))
    assert name in message
    assert problem in message


def test_resuming_in_a_truncated_archive_is_an_error(place):
    """Skipping to a position behind what a damaged archive still holds does not look like its end."""
    packed = gzip.compress(b"".join(b"%d\n" % number for number in range(20_000)))
    source = FilesDataSource([place("short.txt.gz", packed[: len(packed) // 2])])
    (unit,) = source.units()
    with pytest.raises(DataError, match="truncated"):
        list(source.read(unit, 100_000))


def test_a_long_file_is_never_held_whole(place):
    """The first document of a file without an end to its line comes without reading the rest of it."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as archive:
        for _ in range(64):
            archive.write(b"x" * (1 << 20))
    source = FilesDataSource([place("long.txt.gz", packed.getvalue()[:-100])])
    (unit,) = source.units()
    assert next(source.read(unit)).end == 64 << 10
    message = error_of(FilesDataSource([place("long.jsonl.gz", packed.getvalue())], line_bytes=1 << 20))
    assert "longer than 1,048,576 bytes" in message


def test_the_fingerprint_tells_how_files_are_read(place):
    """Another format, field or size of piece is another fingerprint; another order of paths is not."""
    one, two = place("a.txt", b"{}"), place("b.txt", b"{}")
    sources = [
        FilesDataSource([one, two]),
        FilesDataSource([one]),
        FilesDataSource([one, two], document_bytes=8),
        FilesDataSource([one, two], format="jsonl"),
        FilesDataSource([one, two], format="jsonl", text_field="body"),
    ]
    assert len({source.fingerprint() for source in sources}) == len(sources)
    assert FilesDataSource([two, one]).fingerprint() == sources[0].fingerprint()


def test_the_library_of_this_python_can_be_read():
    """The standard library of the running Python gives UTF-8 text without an error, from relative names."""
    source = PythonLibraryDataSource()
    names = [unit.name for unit in source.units()]
    assert "json/decoder.py" in names
    assert not [name for name in names if "test" in Path(name).parts or name.startswith("/")]
    assert sum(len(text) for text in texts_of(source)) > 5_000_000


def test_the_library_leaves_out_what_is_not_its_own(tmp_path):
    """Tests, installed packages, other files and text in another encoding are not part of the library."""
    for name in ("a.py", "site-packages/b.py", "dist-packages/c.py", "d/test/e.py", "d/tests/f.py", "d/idle_test/g.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "d" / "README.txt").write_text("text")
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n# f\xfcr\n")
    assert texts_of(PythonLibraryDataSource(str(tmp_path))) == ["a.py"]


def test_a_python_without_its_source_says_what_to_do(tmp_path):
    """A library in an archive, or none at all, asks for files of one's own."""
    (tmp_path / "python311.zip").write_bytes(b"")
    assert "data.kind=files" in error_of(PythonLibraryDataSource(str(tmp_path)))
