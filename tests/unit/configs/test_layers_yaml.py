"""Files that are no settings are refused by name, whatever is in them."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError


def complaint(file):
    with pytest.raises(ConfigurationError) as caught:
        load_settings([file], [], {})
    message = str(caught.value)
    assert message.isprintable()
    return message


def outcome(files, overrides):
    try:
        return load_settings(files, overrides, {}).settings.run.name
    except ConfigurationError as error:
        return str(error)


def written(folder, text):
    path = folder / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("run:\n  seed: 1\n  seed: 2\n", 3, ["run.seed is there twice", "line 2"]),
        ("monitors:\n- {kind: a, kind: b}\n", 2, ["monitors[0].kind is there twice"]),
        ("run:\n  seed: [1\n", 3, ["--config"]),
        ("run:\n\tseed: 1\n", 2, ["found character"]),
        ("run: &x {seed: 1}\n", 1, ["anchors (&)"]),
        ("run: {seed: 1}\nmodel: *x\n", 2, ["aliases (*)"]),
        ("run: !!python/object/apply:os.system ['true']\n", 1, ["tags (!)"]),
        ("run:\n  1: x\n", 2, ["run has a key that is not text"]),
        ("run:\n  ? [a]\n  : x\n", 2, ["run has a key that is not text"]),
        ("a: 1\n---\nb: 2\n", 2, ["document"]),
        ("run: \0", 1, ["characters that YAML does not allow"]),
    ],
)
def test_bad_yaml_names_file_and_line(tmp_path, text, line, parts):
    """What is no plain YAML is refused with file and line."""
    file = written(tmp_path, text)
    message = complaint(file)
    assert f"--config {file}, line {line}: " in message
    assert [part for part in parts if part not in message] == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        ("- a\n", "must hold sections such as 'run:', not a list"),
        ("5", "must hold sections such as 'run:', not a int"),
        ("# " + "x" * 1024 * 1024, "larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_settings_is_refused(tmp_path, text, part):
    """A file of another encoding, shape or size is refused by name."""
    file = written(tmp_path, text)
    message = complaint(file)
    assert message.startswith(f"--config {file}: ")
    assert part in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """A missing file, a folder and an unreadable path are told apart."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert complaint(tmp_path / "none.yaml").startswith(f"--config {tmp_path / 'none.yaml'}: no such file")
    assert "it is a folder" in complaint(tmp_path)
    assert "it cannot be read (" in complaint(loop)


def test_a_mistyped_file_is_named_with_the_nearest(tmp_path):
    """The file beside it, or else the configuration of the package, that was probably meant."""
    written(tmp_path, "run: {seed: 1}").rename(tmp_path / "mine.yaml")
    assert complaint(tmp_path / "mine.yml").endswith(f"; did you mean {tmp_path / 'mine.yaml'}?")
    assert complaint(tmp_path / "own_txt").endswith("; did you mean own_text?")
    assert complaint(tmp_path / "other").endswith("listed by config --list")


def test_an_empty_file_sets_nothing(tmp_path):
    """A file of comments only is fine."""
    assert load_settings([written(tmp_path, "# nothing\n")], [], {}) == load_settings([], [], {})


def bomb():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        bomb(),
        "{a: " * 5000,
        "[" * 1024 * 1024,
        "- " * 5000 + "a",
        "? " * 5000 + "a",
        "\n".join(f"{' ' * n}a:" for n in range(1400)),
        "a: [" + "x," * 400_000 + "]",
    ],
    ids=["aliases", "mappings", "sequences", "blocks", "keys", "indents", "values"],
)
def test_bombs_are_refused_at_once(tmp_path, text):
    """Aliases that multiply, nesting by the thousand and floods of values are refused before they cost anything."""
    file, calls = written(tmp_path, text), Counter()
    sys.setprofile(lambda _frame, event, _: calls.update([event]))
    try:
        message = complaint(file)
    finally:
        sys.setprofile(None)
    assert calls["call"] < 4e6  # of functions; to read all 400,000 values would take ten times as many
    assert any(part in message for part in ("aliases", "nested deeper than 64", "more than 20000 values"))


@settings(deadline=None)
@given(text=st.text(max_size=60) | st.text(st.sampled_from("ab:[]{}-&*!'\"#|>%@?,= \n\t0.1e~"), max_size=60))
def test_no_text_breaks_the_reader(tmp_path_factory, text):
    """Whatever a file or an override holds, it is either settings or a one-sentence error."""
    file = written(tmp_path_factory.getbasetemp(), text.encode("utf-8", "surrogatepass"))
    for files, overrides in (([file], []), ([], [text]), ([], [f"model.config={text}"]), ([], [f"{text}=1"])):
        assert outcome(files, overrides).isprintable()
