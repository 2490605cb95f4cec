"""Which files a path leads to, and what they are called."""

from __future__ import annotations

import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.python_library import PythonLibraryDataSource
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.urls import without_secrets
from tests.support.reading import read_all, texts_of


def names_of(source):
    return [unit.name.rpartition("/corpus/")[2] for unit in source.units()]


def error_of(source):
    with pytest.raises(DataError) as caught:
        read_all(source)
    message = str(caught.value)
    assert "\n" not in message
    return message


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


def test_a_link_to_nothing_is_named(tmp_path):
    """A link that leads to no file, whatever its suffix, is left out of its folder and named."""
    (tmp_path / "a.txt").write_text("text")
    for name in ("b.txt", "c.zip"):
        (tmp_path / name).symlink_to(tmp_path / "gone.txt")
    source = FilesDataSource([str(tmp_path)])
    assert texts_of(source) == ["text"]
    assert [remark.sentence for remark in source.remarks()] == [
        f"2 files in {tmp_path} are not read, as the link leads to no file: b.txt, c.zip"
    ]


@pytest.mark.parametrize("name", ["none/*.txt", ""])
def test_a_path_that_matches_nothing_is_named(tmp_path, name):
    """Where there is no file the error says what was looked for."""
    (tmp_path / "a.png").write_bytes(b"")
    path = f"{tmp_path}/{name}"
    assert f"no file matches {path}" in error_of(FilesDataSource([path]))


@pytest.mark.parametrize("name", ["none.txt", "none"])
def test_a_path_that_does_not_exist_is_named(tmp_path, name):
    """A file or folder that is not there is said not to be there."""
    path = f"{tmp_path}/{name}"
    assert error_of(FilesDataSource([path])) == f"there is no file or folder {path}: check data.path"


@pytest.mark.parametrize(("wrong", "right"), [("leters.csv", "letters.csv"), ("text", "texts")])
def test_a_misspelled_path_is_answered_with_the_nearest_name(tmp_path, wrong, right):
    """For a path that does not exist, the error names the file or folder beside it with a similar name."""
    (tmp_path / "letters.csv").write_text("text\na\n", encoding="utf-8")
    (tmp_path / "texts").mkdir()
    message = error_of(FilesDataSource([f"{tmp_path}/{wrong}"]))
    assert message == f"there is no file or folder {tmp_path}/{wrong}: did you mean {tmp_path}/{right}?"


def test_a_list_of_paths_in_one_text_is_explained(tmp_path):
    """Two paths that were written into one text are answered with how a list is written."""
    paths = f"{tmp_path},{tmp_path}/notes"
    assert f"data.path=[{paths}]" in error_of(FilesDataSource([paths]))


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
