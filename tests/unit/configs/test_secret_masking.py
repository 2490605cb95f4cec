"""Secrets in the settings never reach what is written or said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from holdfast.configs.plain import leaves, to_plain
from holdfast.configs.rendering import dump_settings, render
from holdfast.configs.secret_masking import MASK, is_secret, mask, mask_text
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_layers import Resolved, load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import without_secrets

# `CANARY` keeps a drawn secret from standing in the settings by chance.
secrets = st.text(st.characters(codec="utf-8", exclude_characters="&"), max_size=20).map("CANARY{}".format)
urls = st.sampled_from(
    [
        "s3://key:{}@bucket/texts/*.jsonl",
        "s3://key:{}@bucket/data@v2/x",
        "https://{}@host/x.txt",
        "https://user:{}@host:8080/x.txt?version=3",
        "https://host/x.txt?a=1&token={}&b=2",
        "https://host/x.txt?X-Amz-Signature={}",
        "https://host/x.txt?a=1;sig={}",
        "https://host/x.txt?%74oken={}",
        "simplecache::s3://key:{}@bucket/x.txt",
        "zip://inner.txt::https://user:{}@host/x.zip",
    ]
)
names = st.sampled_from(
    [
        "token",
        "password",
        "secret",
        "api_key",
        "apiKey",
        "API-KEY",
        "hf_token",
        "accessToken",
        "aws_secret_access_key",
        "client_secret",
        "Authorization",
        "passphrase",
        "key",
    ]
)


def everything_said(settings):
    origins = {".".join(path): "x" for path, _ in leaves(to_plain(settings))}
    return json.dumps(dump_settings(settings), ensure_ascii=False) + render(Resolved(settings, origins))


@hypothesis_settings(deadline=None)
@given(secret=secrets, name=names, nesting=st.sampled_from(["{}", "[]", "deep"]))
def test_what_a_secret_key_holds_is_never_written(secret, name, nesting):
    """Whatever stands under a key that looks like a secret appears neither in the dump nor in the rendering."""
    held = {"{}": secret, "[]": [secret], "deep": {"value": secret, "number": 5}}[nesting]
    settings = restore_settings({"data": {"kind": "outside", "options": {"inner": [{name: held}]}}})
    said = everything_said(settings)
    assert "CANARY" not in said
    assert MASK in said


@hypothesis_settings(deadline=None)
@given(secret=secrets.filter(lambda text: "/" not in text and "?" not in text and "#" not in text), url=urls)
def test_secrets_in_urls_are_never_written(secret, url):
    """User parts and secret parameters of URLs are masked wherever text may stand."""
    text = url.format(secret)
    settings = restore_settings({"data": {"kind": "files", "path": ["a", text]}, "model": {"path": text}})
    said = everything_said(settings)
    assert "CANARY" not in said
    assert said.count(MASK) == 6  # the path of the data, of the model, and of its tokenizer


@pytest.mark.parametrize("secret", ["CANARY/with/slashes", "CANARY@CANARY", "CANARY#x", "CANARY?x", "CANARY:CANARY"])
def test_a_secret_that_was_not_escaped_is_masked_too(secret):
    """A user part with characters that should have been escaped does not slip through."""
    assert "CANARY" not in mask_text(f"s3://key:{secret}@bucket/x")


@pytest.mark.parametrize("secret", ["CANARY", "CANARY/with/slashes", "CANARY@CANARY", "CANARY#x", "CANARY?x"])
@pytest.mark.parametrize(
    "words", ['Invalid bucket name "{}": no', "no {} here", "{}", "at ({}), name={}", "a\n{}/x b@c"]
)
def test_a_secret_is_masked_where_a_library_leaves_the_scheme_away(secret, words):
    """What was taken for a name, key, colon and secret included, is hidden in whatever somebody is told."""
    told = words.replace("{}", f"key:{secret}@bucket")
    assert "CANARY" not in mask_text(told)
    assert mask([{"reason": told}]) == [{"reason": words.replace("{}", f"{MASK}@bucket")}]


def test_a_pattern_in_the_settings_is_no_secret():
    """A setting that merely looks like a user and a host is kept as it is: a resume needs it."""
    overrides = ["data.transforms=[{kind: replace, options: {pattern: 'a:b@c', by: x}}]"]
    settings = load_settings([], overrides, {}).settings
    assert restore_settings(dump_settings(settings)) == settings


def test_the_rest_of_a_url_stays():
    """Only the secret goes: scheme, host, path and other parameters stay readable, and so does a port."""
    assert mask_text("https://u:p@host:80/a?b=1&token=t&c=2") == f"https://{MASK}@host:80/a?b=1&token={MASK}&c=2"
    urls = ("s3://bucket/a@b", "http://host:8080/data@v1?page=2", "x?max_tokens=5")
    for harmless in (*urls, "mail me@home", "see: x@y.org", "at 12:30, host:80 @ home", "a:@b"):
        assert mask_text(harmless) == harmless


def test_words_that_resemble_secrets_are_not_masked():
    """Tokens of a vocabulary and numbers of tokens are no secrets."""
    harmless = [
        "tokenizer",
        "max_tokens",
        "tokens",
        "eos_token",
        "pad_token_id",
        "bos_token",
        "num_key_value_heads",
        "keep",
    ]
    assert [name for name in harmless if is_secret(name)] == []
    assert mask({"model": {"eos_token": "</s>", "max_tokens": 5}}) == {"model": {"eos_token": "</s>", "max_tokens": 5}}


def test_the_defaults_hold_nothing_to_mask():
    """The default settings are written as they are."""
    assert dump_settings(TrainSettings()) == to_plain(TrainSettings())


def test_a_masked_secret_is_not_taken_for_the_secret(tmp_path):
    """Settings with a masked secret are refused by name, so that a run does not start with a wrong password."""
    secret = ["data.kind=outside", "data.options={password: hunter2}"]
    file = tmp_path / "rendered.yaml"
    file.write_text(render(load_settings([], secret, {})), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"data\.options\.password \(.*\) has a masked secret"):
        load_settings([file], [], {})
    assert load_settings([file], ["data.options.password=hunter2"], {}).settings.data.options == {"password": "hunter2"}


@pytest.mark.parametrize(
    "override",
    [
        "data.kind=s3://key:CANARY@bucket",
        "run.budget.steps=s3://key:CANARY@bucket",
        "optimizer.precision=https://host?token=CANARY",
        "hub_token=CANARY",
        "optimizer.api_key=CANARY",
        "s3://key:CANARY@bucket",
    ],
)
def test_errors_do_not_repeat_secrets(override):
    """A message about a wrong setting shows its value only without secrets."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings([], [override, "data.x=1"], {})
    assert "CANARY" not in str(caught.value)


def test_a_sentence_after_a_secret_that_was_hidden_already_stays():
    """What is masked a second time keeps the words after the URL."""
    said = without_secrets("https://host/x?part=1&X-Amz-Signature=CANARY: line 3 is not one JSON object")
    assert mask_text(said) == f"https://host/x?part=1&X-Amz-Signature={MASK} line 3 is not one JSON object"
