"""From pydantic's errors to one line with a place: tags stripped, names suggested, the first in the file told."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from orch.errors import OrchError
from orch.recipe.faults import checked, fields_at
from orch.recipe.source import Origin, read_text


class TopK(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["top-k"]
    ratio: float = Field(gt=0)


class Qsgd(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["qsgd"]
    bits: int = 8


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    label: str = "x"
    size: Annotated[int, Field(ge=1)] | None = None
    flag: bool = True


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tech: list[Annotated[TopK | Qsgd, Field(discriminator="kind")]] = []
    inner: Inner = Inner()
    by_name: dict[str, Inner] = {}
    channels: Literal[1, 3] = 1
    share: float = 0.5
    pair: Annotated[list[int], Field(min_length=2, max_length=2)] = [1, 2]

    @model_validator(mode="after")
    def _rule(self) -> Outer:
        if self.inner.label == "bad":
            raise ValueError("must not be bad")
        return self


def check(text: str) -> Outer:
    result: Outer = checked(Outer.model_validate, read_text(text, Origin("r.yaml")), ("top",), Outer)
    return result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tech: [{kind: top-k, ratio: 0}]\n", "r.yaml:1:29: top.tech.0.ratio must be above 0; it is 0 [E213]"),
        ("tech: [{kind: top-k}]\n", "r.yaml:1:8: top.tech.0.ratio is missing (); add it, or set top.tech.0.ratio=VALUE"),
        ("tech: [{kind: topK2, ratio: 1}]\n", "r.yaml:1:8: top.tech.0 "),
        ("tech: [{kind: qsgd, bit: 1}]\n", "r.yaml:1:21: unknown key 'bit' in top.tech.0"),
        ("inner: {lable: x}\n", "r.yaml:1:9: unknown key 'lable' in top.inner; did you mean label? [E210]"),
        ("by_name: {a: {lable: x}}\n", "r.yaml:1:15: unknown key 'lable' in top.by_name.a; did you mean label? [E210]"),
        ("by_name: {a: {size: 0}}\n", "r.yaml:1:21: top.by_name.a.size must be at least 1; it is 0 [E213]"),
        ("inner: {flag: yes}\n", "r.yaml:1:15: top.inner.flag must be true or false; it is 'yes'; write true [E212]"),
        ("inner: {flag: False}\n", "r.yaml:1:15: top.inner.flag must be true or false; it is 'False'; write false [E212]"),
        ("inner: {flag: 1}\n", "r.yaml:1:15: top.inner.flag must be true or false; it is 1 [E212]"),
        ("inner: {label: [x]}\n", "r.yaml:1:16: top.inner.label must be text; it is a list; text that begins with"),
        ("inner: {label: }\n", "r.yaml:1:16: top.inner.label must be text; it is nothing [E212]"),
        ("inner: 3\n", "r.yaml:1:8: top.inner must be a mapping: {key: value}; it is 3 [E212]"),
        ("inner: {label: bad}\n", "r.yaml:1:1: top must not be bad [E215]"),
        ("pair: [1]\n", "r.yaml:1:7: top.pair must have at least 2 entries [E213]"),
        ("pair: [1, 2, 3]\n", "r.yaml:1:7: top.pair must have at most 2 entries [E213]"),
        ("channels: true\n", "r.yaml:1:11: top.channels must be a number; it is true [E212]"),
        ("share: true\n", "r.yaml:1:8: top.share must be a number; it is true [E212]"),
        ("pair: [1, true]\n", "r.yaml:1:11: top.pair.1 must be a number; it is true [E212]"),
        ("pair: 3\n", "r.yaml:1:7: top.pair must be a list: [a, b]; it is 3 [E212]"),
        ("inner: {size: -1}\nzzz: 1\npair: 3\n", "r.yaml:1:15: top.inner.size must be at least 1; it is -1 [E213]"),
        ("zzz: 1\ninner: {size: -1}\n", "r.yaml:1:1: unknown key 'zzz' in top; allowed: tech, inner, by_name, channels, share, pair [E210]"),
    ],
)  # fmt: skip
def test_the_first_fault_of_the_file_is_told(text: str, message: str) -> None:
    with pytest.raises(OrchError) as caught:
        check(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("word", ["1.10", "010", "0x10", "1e3", "true", "1_000", "2026-01-01", ".5"])
def test_where_text_is_wanted_a_word_stays_as_it_was_written(word: str) -> None:
    assert check(f"inner: {{label: {word}}}").inner.label == word
    assert check(f"by_name: {{a: {{label: {word}}}}}").by_name["a"].label == word


def test_the_fields_below_a_path() -> None:
    assert list(fields_at(Outer, ("inner",))) == ["label", "size", "flag"]
    assert list(fields_at(Outer, ("by_name", "any"))) == ["label", "size", "flag"]
    assert fields_at(Outer, ("pair", "0")) == {}
    assert fields_at(Outer, ("nowhere", "x")) == {}
