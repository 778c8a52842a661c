"""Secrets are hidden; tokens of a vocabulary, counts and code are not."""

import pytest

from orch.track.redact import HIDDEN, is_secret_name, redact, redact_command, redact_source, redact_text


@pytest.mark.parametrize(
    "name",
    ["password", "DB_PASSWORD", "dbPassword", "api_key", "apiKey", "API-KEY", "hf_token", "HF_TOKEN", "token",
     "aws_secret_access_key", "client_secret", "private_key", "authorization", "credentials"],
)  # fmt: skip
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["tokens", "num_tokens", "tokenizer", "pad_token", "eos_token", "key", "keys", "monkey", "lr", "seq_len",
     "author", "secretary", "tokens_per_s", "passes", "", "李"],
)  # fmt: skip
def test_names_that_only_look_alike(name):
    assert not is_secret_name(name)


def test_a_recipe_keeps_everything_but_its_secrets():
    recipe = {
        "data": {"use": "tokens", "url": "https://me:pw@host/x?token=abc&n=1", "hf_token": "abc", "token": 7},
        "list": [{"password": 1234}, "plain"],
        "cache_password": ["a", "b"],
    }
    assert redact(recipe) == {
        "data": {"use": "tokens", "url": f"https://{HIDDEN}@host/x?token={HIDDEN}&n=1", "hf_token": HIDDEN, "token": 7},
        "list": [{"password": HIDDEN}, "plain"],
        "cache_password": [HIDDEN, HIDDEN],
    }


@pytest.mark.parametrize("secret", ["ghp_" + "a1" * 15, "hf_" + "Ab" * 14, "sk-" + "x9" * 15, "AKIA" + "A1" * 8])
def test_tokens_are_known_by_shape(secret):
    assert secret not in redact_text(f"pulled with {secret}, fine")


def test_private_keys_are_hidden_even_when_cut_off():
    assert redact_text("a -----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc") == f"a {HIDDEN}"


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ('+password = "hunter2"', "hunter2"),
        ("+HF_TOKEN=plainword", "plainword"),
        ("+  api_key: abc123", "abc123"),
        ("+{'client_secret': 'xyz'}", "xyz"),
        ("+Authorization: Bearer abc123", "abc123"),
    ],
)
def test_literals_in_a_diff_are_hidden(line, hidden):
    assert hidden not in redact_source(line)
    assert HIDDEN in redact_source(line)


@pytest.mark.parametrize(
    "line",
    ["+next_token = best", '+token = os.environ["X"]', "+password: str", "+def f(token=token): return g(token)",
     "+pad_token = '<pad>'", "+if api_key == other:", "+n_tokens: 4096"],
)  # fmt: skip
def test_code_in_a_diff_is_not_touched(line):
    assert redact_source(line) == line


def test_a_command_line_loses_its_secrets():
    assert redact_command(["orch", "run", "--api-key", "abc", "data.hf_token=abc", "--token=abc", "train.lr=0.1"]) == [
        "orch", "run", "--api-key", HIDDEN, f"data.hf_token={HIDDEN}", f"--token={HIDDEN}", "train.lr=0.1",
    ]  # fmt: skip
