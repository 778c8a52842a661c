"""Secrets stay out of runs: values under telling names, credentials inside URLs, and tokens known by their shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "[redacted]"

# Tokenisers have tokens that are no secrets, and a count of tokens is a number: both stay readable.
_VOCABULARY = {"pad", "eos", "bos", "unk", "mask", "sep", "cls", "special", "image", "prefix", "suffix", "stop"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = {"password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials", "apikey"}
_KEYS_BEFORE_KEY = {"api", "access", "private", "secret", "encryption", "signing", "ssh"}
_SHAPES = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|hf_[A-Za-z0-9]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})"
)
_URL = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/@'\"]+@")
_QUERY = re.compile(r"(?P<name>[?&][A-Za-z0-9_.-]+)=(?P<value>[^&\s#'\"]+)")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_ASSIGNED = re.compile(
    r"(?P<name>[A-Za-z_][\w.-]*)(?P<sign>['\"]?\s*[=:]\s*)(?P<quote>['\"]?)(?:(?:Bearer|Basic|Token)\s+)?(?P<value>[^\s'\",;]+)"
)
_CODE = re.compile(r"[^\d]*[()\[{$<|=].*|[A-Za-z_.]+:?")


def is_secret_name(name: str) -> bool:
    """Return whether a value under `name` is to be hidden: `db_password`, `HF_TOKEN`, `apiKey`, not `pad_token`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    before = words[-2] if len(words) > 1 else ""
    if any(word in _ALWAYS for word in words):
        return True
    if words[-1] in {"token", "auth", "authorization"}:
        return before not in _VOCABULARY
    return words[-1] in {"key", "keys"} and before in _KEYS_BEFORE_KEY


def redact_text(text: str) -> str:
    """Return `text` without URL credentials, secret query arguments and strings that have the shape of a token."""
    text = _URL.sub(rf"\g<scheme>{HIDDEN}@", text)
    text = _QUERY.sub(lambda m: f"{m['name']}={HIDDEN}" if is_secret_name(m["name"]) else m[0], text)
    return _SHAPES.sub(HIDDEN, _PEM.sub(HIDDEN, text))


def redact_source(text: str) -> str:
    """Like `redact_text`, for code and diffs: also the literals assigned to telling names.

    What is code (`token=os.environ[...]`, `next_token = best`, `password: str`) holds no secret by itself and stays, so
    that a diff can still be applied; a value under a name in capitals, as in a `.env` file, is never taken for code.
    """

    def hide(match: re.Match[str]) -> str:
        code = not match["quote"] and not match["name"].isupper() and _CODE.fullmatch(match["value"])
        if not code and is_secret_name(match["name"].rsplit(".", 1)[-1]):
            return f"{match['name']}{match['sign']}{match['quote']}{HIDDEN}"
        return match[0]

    return _ASSIGNED.sub(hide, redact_text(text))


def redact_command(arguments: Sequence[str]) -> list[str]:
    """Return a command line without secrets: `--token X`, `--token=X`, `a.password=X` and what `redact_text` knows."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, sign, _ = argument.partition("=")
        secret = is_secret_name(name.rsplit(".", 1)[-1])
        if hide_next and not argument.startswith("-"):
            shown.append(HIDDEN)
        elif sign and secret:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(redact_text(argument))
        hide_next = argument.startswith("--") and not sign and secret
    return shown


def redact(value: object, name: str = "") -> object:
    """Return `value`, a tree of mappings and sequences, with every secret replaced by `[redacted]`."""
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, name) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if is_secret_name(name.rsplit(".", 1)[-1]) and not (name.lower().endswith("token") and not isinstance(value, str)):
        return HIDDEN
    return redact_text(value) if isinstance(value, str) else value
