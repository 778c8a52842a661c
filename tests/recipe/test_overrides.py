"""Overrides: values by the same rule as files, paths that are found or explained, nothing lost silently."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orch.errors import OrchError
from orch.recipe.overrides import apply_overrides, parse_override, refuse_meetings
from orch.recipe.source import Origin, read_text
from orch.recipe.tree import Node

BASE = read_text(
    """\
name: base
seeds: [0, 1]
train: {steps: 400, batch_per_worker: 8}
techniques: {acp-sgd: {rank: 4}}
stacks: {a+b: [x], "v1.5": [y]}
cluster: local-4
gone: null
""",
    Origin("r.yaml"),
)


def applied(*texts: str) -> dict[str, object]:
    overrides = [parse_override(text, number) for number, text in enumerate(texts, 1)]
    refuse_meetings(overrides)
    result: dict[str, object] = apply_overrides(BASE, overrides).plain()
    return result


def at(*texts: str, path: str) -> object:
    node: object = applied(*texts)
    for key in path.split("/"):
        node = node[key]  # type: ignore[index]
    return node


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("train.steps=20", "train/steps", 20),
        ("train.steps = 20 ", "train/steps", 20),
        ("techniques.acp-sgd.rank=8", "techniques/acp-sgd/rank", 8),
        ("techniques.new.rank=8", "techniques/new/rank", 8),
        ("stacks.a+b=[p, q]", "stacks/a+b", ["p", "q"]),
        ("stacks.v1.5=[z]", "stacks/v1.5", ["z"]),
        ('stacks."v2.0"=[z]', "stacks/v2.0", ["z"]),
        (r'stacks."a\"b"=[z]', 'stacks/a"b', ["z"]),
        ("stacks={s: [x]}", "stacks", {"s": ["x"]}),
        ("cluster.nodes=512", "cluster", {"use": "local-4", "nodes": 512}),
        ("cluster.nodes=null", "cluster", {"use": "local-4", "nodes": None}),
        ("cluster=other", "cluster", "other"),
        ("gone.x=1", "gone", {"x": 1}),
        ("train.global_batch=64", "train", {"steps": 400, "global_batch": 64}),
        # The value is YAML, by the rule of files.
        ("name=李", "name", "李"),
        ("name=x#y", "name", "x#y"),
        ("name=x=y", "name", "x=y"),
        ("name=it's", "name", "it's"),
        ("name='it''s'", "name", "it's"),
        ('name="a b"', "name", "a b"),
        ('name="a\\nb"', "name", "a\nb"),
        ("name=yes", "name", "yes"),
        ("name=1e-3", "name", 1e-3),
        ("name=010", "name", "010"),
        ("name=12:30", "name", "12:30"),
        ("name=nan", "name", "nan"),
        ("name=1_000", "name", 1000),
        ("name=true", "name", True),
        ("name='true'", "name", "true"),
        ("name={a: [1, b]}", "name", {"a": [1, "b"]}),
        ("name=a: b", "name", {"a": "b"}),
        ("name=\n  a: 1\n  b: 2", "name", {"a": 1, "b": 2}),
        ("name='x #y'", "name", "x #y"),
        ('name=""', "name", ""),
    ],
)  # fmt: skip
def test_an_override_sets_a_value(text: str, path: str, value: object) -> None:
    found = at(text, path=path)
    assert (found, type(found)) == (value, type(value))


def test_list_entries_are_set_and_removed_by_index() -> None:
    assert applied("seeds.0=3")["seeds"] == [3, 1]
    assert applied("seeds.1=null")["seeds"] == [0]


@pytest.mark.parametrize("index", ["00", "01", "2", "-1", "0x0", "\u0660", "0_0"])
def test_an_index_has_one_spelling(index: str) -> None:
    with pytest.raises(OrchError, match=r"is a list and has no entry|must be a list"):
        applied(f"seeds.{index}=3")


def test_null_removes_a_key() -> None:
    assert applied("train.steps=null")["train"] == {"batch_per_worker": 8}


def test_a_value_knows_its_override_and_what_it_replaced() -> None:
    tree = apply_overrides(BASE, [parse_override("train.steps=20", 1)])
    node = tree.find(("train", "steps"))
    assert isinstance(node, Node)
    assert node.over is not None
    assert (str(node.where), node.over.value, str(node.over.where)) == (
        "override 1: train.steps=20",
        400,
        "r.yaml:3:16",
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["train.steps"], "override 1: train.steps: has no `=`; an override is path=value, such as train.steps=20 [E130]"),
        ([""], "override 1: '': has no `=`; an override is path=value, such as train.steps=20 [E130]"),
        (["+name=x"], "override 1: +name=x: orch has no `+`: setting a key and adding one are the same; drop the + [E131]"),
        (["stacks.a[0]=x"], "override 1: stacks.a[0]=x: orch has no [ ] in a path; an entry of a list: seeds.0=VALUE [E131]"),
        (["~name"], "override 1: ~name: orch has no `~`; KEY=null removes a key [E131]"),
        (["name+=x"], "override 1: name+=x: orch has no `+=`; write the whole list: key=[a, b] [E131]"),
        (["-x"], "override 1: -x: is neither an option nor an override; an override is path=value; options: --help [E131]"),
        (["extends=x"], "override 1: extends=x: extends cannot be set from the command line; write a recipe that extends it [E131]"),
        (["=x"], "override 1: =x: has no path before its `=`; an override is path=value [E132]"),
        (["a..b=1"], "override 1: a..b=1: a part of the path is empty or its quotes do not match; write a.b.c=value [E132]"),
        (["a.=1"], "override 1: a.=1: a part of the path is empty or its quotes do not match; write a.b.c=value [E132]"),
        (['a."b=1'], 'override 1: a."b=1: a part of the path is empty or its quotes do not match; write a.b.c=value [E132]'),
        (['a."b"c=1'], 'override 1: a."b"c=1: a dot is missing after the closing quote; write a."b.c".d=value [E132]'),
        (["a.\x07=1"], r"override 1: a.\x07=1: a part of the path is empty or unprintable; write a.b.c=value [E132]"),
        (["a." * 50 + "b=1"], f"override 1: {('a.' * 50)[:57]}...: the path has more than 40 parts [E132]"),
        (["train.steps.x=1"], "override 1: train.steps.x=1: train.steps is 400, which has no 'x' below it; set train.steps itself [E132]"),
        (["name.x=1"], "override 1: name.x=1: name is 'base', which has no 'x' below it; set name itself [E132]"),
        (["seeds.7=1"], "override 1: seeds.7=1: seeds is a list and has no entry '7'; its entries are 0 to 1; seeds=[...] sets the whole list [E132]"),
        (["seeds.-1=1"], "override 1: seeds.-1=1: seeds is a list and has no entry '-1'; its entries are 0 to 1; seeds=[...] sets the whole list [E132]"),
        (["train.stesp=null"], "override 1: train.stesp=null: there is no train.stesp to remove; did you mean steps? [E132]"),
        (["name="], "override 1: name=: has no value after its `=`; KEY=null removes a key; KEY='\"\"' is empty text [E133]"),
        (["name=x #y"], "override 1: name=x #y: a # after a space begins a comment, so the rest would be lost; quote the value: KEY='\"a #b\"' [E133]"),
        (["name=#x"], "override 1: name=#x: a # after a space begins a comment, so the rest would be lost; quote the value: KEY='\"a #b\"' [E133]"),
        (["name=a\nb"], r"override 1: name=a\nb: its value runs over several lines; put it in double quotes, with \n for a line end [E133]"),
        (["name=---"], "override 1: name=---: `---` begins a document, not a value; quote it: KEY='\"---\"' [E133]"),
        (["name=[x"], "override 1: name=[x: not valid YAML: did not find expected ',' or ']' while parsing a flow sequence that begins in line 1; quote the value: KEY='\"...\"' [E106]"),
        (["name=@x"], "override 1: name=@x: a value cannot begin with '@'; put it in quotes: '@x' [E106]"),
        (["name=*x"], "override 1: name=*x: *x names no anchor above it; text that begins with * needs quotes [E112]"),
        (["name=!x y"], "override 1: name=!x y: the tag '!x' is not used in recipes; write the value without it [E108]"),
        (["name={a: 1, a: 2}"], "override 1: name={a: 1, a: 2}: 'a' stands here a second time; keep one of them [E110]"),
        (["name=\x00"], r"override 1: name=\x00: a control character is not allowed in YAML; remove it, or write it as an escape in double quotes [E102]"),
        (["name=\ud800"], r"""override 1: name=\ud800: holds characters that are not valid text; quote the value: KEY='"..."' [E102]"""),
        (["name=" + "[" * 99], f"override 1: name={'[' * 52}...: nested more than 40 levels deep; quote the value: KEY='\"...\"' [E111]"),
        (["name=1e999"], "override 1: name=1e999: 1e999 is larger than any number orch can hold (about 1.8e308); quote the value: KEY='\"...\"' [E113]"),
        (["train.steps=1", "train.steps=2"], "override 2: train.steps=2: override 1 already sets train.steps; keep one [E134]"),
        (["train.steps=1", "train={}"], "override 2: train={}: override 1 already sets a part of it, train.steps; give the whole first, then its parts [E134]"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_says_why(texts: list[str], message: str) -> None:
    with pytest.raises(OrchError) as caught:
        applied(*texts)
    assert str(caught.value) == message


def test_a_whole_may_be_followed_by_its_parts() -> None:
    assert applied("train={}", "train.steps=3")["train"] == {"steps": 3}


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30) | st.from_regex(r"[a-z.]{1,8}=[\[\]{}:,#&*'\"a1 \n-]{0,12}", fullmatch=True))
@example("name=\u2028x")
@example("name=\ufeffx")
@example("name='\x85'")
def test_any_text_is_an_override_or_one_line(text: str) -> None:
    try:
        applied(text)
    except OrchError as error:
        line = str(error)
    else:
        line = "override 1: "
    assert line.startswith("override 1: ")
    assert line.isprintable()
