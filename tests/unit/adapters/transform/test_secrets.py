"""The transform ``secrets`` finds planted keys and tokens, and leaves clean texts alone."""

from __future__ import annotations

import pytest

from holdfast.adapters.transform.secrets import SECRETS, SecretsTransform
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Record
from tests.support.record_transforms import judged

# put together here, so that no scanner of this repository takes them for real
BASE64 = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
LETTERS = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXyZ0aBcD4eFgH7iJkL"
PEM = f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{BASE64}\n{BASE64}\n-----END RSA PRIVATE {'KEY'}-----"
PGP = f"-----BEGIN PGP PRIVATE {'KEY'} BLOCK-----\nVersion: X - 1\n\n{BASE64}\n-----END PGP PRIVATE {'KEY'} BLOCK-----"
PLANTED = [
    ("aws", "AKIA" + "IOSFODNN7EXAMPLE"),
    ("aws", "ASIA" + "Y34FZKBOKMUTVV7A"),
    ("github", "ghp" + "_" + LETTERS[:36]),
    ("github", "ghs" + "_" + LETTERS[:36]),
    ("github", "github" + "_pat_" + LETTERS[:22] + "_" + (LETTERS * 2)[:59]),
    ("slack", "xox" + "b-17653672481-19874698323-" + LETTERS[:24]),
    ("slack", "xapp" + "-1-A0123456789-1234567890123-" + LETTERS[:20]),
    ("slack", "hooks.slack" + ".com/services/T12345678/B12345678/" + LETTERS[:24]),
    ("google", "AI" + "za" + LETTERS[:33] + "-_"),
    ("stripe", "sk" + "_live_" + LETTERS[:24]),
    ("stripe", "rk" + "_test_" + LETTERS[:24]),
    ("private_key", PEM),
    ("private_key", PGP),
    ("private_key", PEM.replace("\n", "\\n")),
    ("jwt", "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + LETTERS[:43]),
]
ASSIGNED = [
    ('api_key = "{}"', LETTERS[:20]),
    ("API-KEY: {}", LETTERS[:32]),
    ("export DB_PASSWORD={}", LETTERS[:24]),
    ('{{"client_secret": "{}"}}', LETTERS[:40]),
    ("auth_token := '{}'", "9f86d081884c7d659a2feaa0c55ad015"),
    ('headers["x-api-token"] = "{}"', LETTERS[:26]),
    ("'secret' => '{}',", LETTERS[:22] + "=="),
    ("aws_secret_access_key={}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY"),
]
CLEAN = (
    "The keyword is ASIA, AKIASHORT and AKIAiosfodnn7example, and xAKIAIOSFODNN7EXAMPLE.",
    "internationalization_of_telecommunications_is_a_long_name = another_rather_long_name_without_digits",
    "ghp_short, gh_token, github_pat_x, xoxo-hugs-and-kisses, AIzaTooShort, sk_live_short, task_test_a1b2c3d4e5f6g7",
    f"-----BEGIN CERTIFICATE-----\n{BASE64}\n-----END CERTIFICATE-----",
    f"-----BEGIN PUBLIC KEY-----\n{BASE64}\n-----END PUBLIC KEY-----",
    f"-----BEGIN PRIVATE {'KEY'}-----\n(your key goes here)\n-----END PRIVATE {'KEY'}-----",
    'token = "aaaaaaaaaaaaaaaaaaaaaaaa1"; password = "changeme"; secret = os.environ["SECRET_OF_THE_SERVICE_1"]',
    f"commit = {LETTERS[:40]} and sha256:{LETTERS[:40]}",
    "api_key = get_the_api_key_from_the_environment()",
    "=" * 200 + "-" * 200 + "eyJ" * 50,
)


@pytest.mark.parametrize("around", ["{}", "key {} end", "'{}',\n", "(京都{}。)"])
@pytest.mark.parametrize(("kind", "planted"), PLANTED)
def test_planted_secrets_are_replaced(kind, planted, around):
    """Each secret becomes the mark, and nothing around it changes; only its own kind finds it."""
    assert judged(SecretsTransform(find=[kind]), around.format(planted)) == around.format("<secret>")
    others = [other for other in SECRETS if other != kind]
    assert judged(SecretsTransform(find=others), around.format(planted)) == around.format(planted)


@pytest.mark.parametrize(("assignment", "value"), ASSIGNED)
def test_values_of_telling_names_are_replaced(assignment, value):
    """A value that looks random is replaced where it is assigned to a key or token; its name stays."""
    assert judged(SecretsTransform(), f"a\n{assignment.format(value)}\n") == f"a\n{assignment.format('<secret>')}\n"


@pytest.mark.parametrize("text", CLEAN)
def test_clean_text_stays(text):
    """A text that only resembles a secret is the same record afterwards."""
    record = Record(text)
    assert SecretsTransform().apply([record])[0] is record


def test_a_private_key_that_is_cut_off_is_replaced():
    """A document may end within the block."""
    assert judged(SecretsTransform(), "x " + PEM[:120]) == "x <secret>"


def test_records_with_secrets_can_be_dropped():
    """The reason of a drop is the kind; the detail does not repeat the secret."""
    transform = SecretsTransform(action="drop")
    for kind, planted in PLANTED:
        [dropped] = transform.apply([Record(f"use {planted} now")])
        assert dropped.reason == f"secrets.{kind}"
        assert planted not in dropped.detail


def test_the_least_entropy_can_be_chosen():
    """A value with less entropy than asked for stays."""
    text = f"token = {LETTERS[:20]}"
    assert judged(SecretsTransform(min_entropy=4.3), text) == "token = <secret>"
    assert judged(SecretsTransform(min_entropy=4.4), text) == text


@pytest.mark.parametrize("bad", ["eyJ" * 40000, "key=aaaaaaaaaaaaaaaaaaaa" * 5000, "=" * 100000, PEM[:31] * 4000])
def test_hostile_texts_take_no_longer(bad):
    """Repetition does not make a search take for ever: the test's time limit would end it."""
    assert judged(SecretsTransform(), bad) is not None


def test_options_that_matter_are_in_the_fingerprint():
    """Another action, mark, choice or bound is another transform; the bound is that of generic only."""
    options = [{}, {"action": "drop"}, {"find": ["aws"]}, {"mark": "KEY"}, {"min_entropy": 3}]
    assert len({SecretsTransform(**each).fingerprint() for each in options}) == len(options)
    bounded = SecretsTransform(find=["aws"], min_entropy=1)
    assert bounded.fingerprint() == SecretsTransform(find=["aws"]).fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"find": ["azure"]}, "each of find .* one of aws, .*generic, not 'azure'"),
        ({"action": None}, "action of .* one of replace, drop, not None"),
        ({"mark": 3}, "mark of .* valid Unicode text"),
        ({"min_entropy": 9}, "min_entropy of .* from 0 to 8, not 9"),
    ],
)
def test_wrong_options_are_told(options, message):
    """A wrong option is an error in one sentence."""
    with pytest.raises(ConfigurationError, match=message):
        SecretsTransform(**options)
