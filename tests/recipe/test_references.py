"""References: values used twice, found when the recipe is loaded, bounded."""

from __future__ import annotations

import pytest

from orch.errors import OrchError
from orch.recipe.references import first_missing, resolve
from orch.recipe.source import Origin, read_text


def resolved(text: str) -> object:
    return resolve(read_text(text, Origin("r.yaml"))).plain()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 3\nb: ${a}\n", {"a": 3, "b": 3}),
        ("a: {b: [x, y]}\nc: ${a.b.1}\nd: ${a}\n", {"a": {"b": ["x", "y"]}, "c": "y", "d": {"b": ["x", "y"]}}),
        ("a: 3\nb: n${a}-${a}\n", {"a": 3, "b": "n3-3"}),
        ("a: 1e-3\nb: lr${a}\n", {"a": 1e-3, "b": "lr1e-3"}),
        ("a: true\nb: is ${a}\n", {"a": True, "b": "is true"}),
        ("a: ${b}\nb: ${c}\nc: 1\n", {"a": 1, "b": 1, "c": 1}),
        ("a: ${b.x}\nb: ${c}\nc: {x: 5}\n", {"a": 5, "b": {"x": 5}, "c": {"x": 5}}),
        ("a: {x: 1, y: '${a.x}'}\n", {"a": {"x": 1, "y": 1}}),
        ("a: cost $5, $${5}, $$x\n", {"a": "cost $5, ${5}, $x"}),
        ("a: '${ b }'\nb: 2\n", {"a": 2, "b": 2}),
        ("a-b: 1\nc: ${a-b}\n", {"a-b": 1, "c": 1}),
    ],
)
def test_a_reference_is_its_value(text: str, value: object) -> None:
    assert resolved(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {b: 1}\nc: ${a.bb}\n", "r.yaml:2:4: ${a.bb} names nothing: there is no 'bb' in a; did you mean b? [E120]"),
        ("a: cost ${5}\n", "r.yaml:1:4: ${5} names nothing: there is no '5'; $${...} is literal text [E120]"),
        ("a: ${oc.env:HOME}\n", "r.yaml:1:4: ${oc.env:HOME} names nothing: there is no 'oc'; $${...} is literal text [E120]"),
        ("a: ${}\n", "r.yaml:1:4: ${} names nothing: there is no ''; $${...} is literal text [E120]"),
        ("a: 1\nb: ${a.x}\n", "r.yaml:2:4: ${a.x} names nothing: there is no 'x' in a; $${...} is literal text [E120]"),
        ("a: ${a}\n", "r.yaml:1:4: '${a}' leads back to itself [E121]"),
        ("a: ${b}\nb: ${a}\n", "r.yaml:2:4: '${a}' leads back to itself [E121]"),
        ("a: {b: '${a}'}\n", "r.yaml:1:8: '${a}' leads back to itself [E121]"),
        ("a: '${b'\nb: 1\n", "r.yaml:1:4: a reference in '${b' has no closing brace; $${ is a literal ${ [E122]"),
        ("a: x${b}\nb: [1]\n", "r.yaml:1:4: ${b} is a list, which does not fit into a text [E122]"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed(text: str, message: str) -> None:
    with pytest.raises(OrchError) as caught:
        resolved(text)
    assert str(caught.value) == message


def test_a_chain_may_be_long_but_not_endless() -> None:
    def chain(length: int) -> str:
        return "".join(f"a{i}: ${{a{i + 1}}}\n" for i in range(length)) + f"a{length}: 1\n"

    assert resolved(chain(40))["a0"] == 1  # type: ignore[index]
    with pytest.raises(OrchError, match=r"follows more than 50 references in a row \[E121\]"):
        resolved(chain(5000))


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        ("[x, x]", "['${a%d}', '${a%d}', '${a%d}', '${a%d}']", "holds more than 50,000 values once its references"),
        ("x" * 100, "'${a%d}${a%d}${a%d}${a%d}'", "its references make more than 1 MiB of text"),
    ],
)
def test_exploding_references_end_at_once(first: str, later: str, message: str) -> None:
    lines = [f"a0: {first}"] + [f"a{i}: {later.replace('%d', str(i - 1))}" for i in range(1, 30)]
    with pytest.raises(OrchError, match=message):
        resolved("\n".join(lines))


def test_question_marks_wait_for_the_command_line() -> None:
    tree = read_text("a: {b: [1, '???']}\nc: '????'\n", Origin("r.yaml"))
    error = first_missing(tree)
    assert str(error) == "r.yaml:1:12: a.b.1 is ??? (missing); set it with a.b.1=VALUE [E123]"
    assert first_missing(read_text("a: ????\n", Origin("r.yaml"))) is None
