"""Composition: parents, names, short forms; the place of every value survives."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.recipe.compose import compose, locate, merge, normalise
from orch.recipe.source import Origin, read_text
from orch.recipe.tree import Node

PARENT = """\
orch: 1
name: parent
model: {use: gpt2, seq_len: 64}
train: {batch_per_worker: 8, optimizer: {adamw: {lr: 1e-3, weight_decay: 0.1}}, steps: 10}
cluster: tiny
stacks: {plain: [each], merged: [together, squeeze]}
seeds: [0, 1]
"""


def tree(text: str) -> Node:
    return read_text(text, Origin("r.yaml"))


def extended(lab: Path, child: str) -> Node:
    (lab / "parent.yaml").write_text(PARENT)
    (lab / "child.yaml").write_text("extends: parent.yaml\n" + child)
    return compose(lab / "child.yaml").tree


@pytest.mark.parametrize(
    ("parent", "child", "merged"),
    [
        ("a: {x: 1, y: 2}", "a: {y: 3, z: 4}", {"a": {"x": 1, "y": 3, "z": 4}}),
        ("a: [1, 2]", "a: [3]", {"a": [3]}),
        ("a: {x: 1}", "a: 5", {"a": 5}),
        ("a: 5", "a: {x: 1}", {"a": {"x": 1}}),
        ("a: 1\nb: 2", "a: null", {"b": 2}),
        ("a: 1", "b: null", {"a": 1, "b": None}),
        ("train: {batch_per_worker: 8}", "train: {global_batch: 64}", {"train": {"global_batch": 64}}),
        ("train: {optimizer: {adamw: {lr: 1}}}", "train: {optimizer: {sgd: {lr: 2}}}", {"train": {"optimizer": {"sgd": {"lr": 2}}}}),
        ("train: {optimizer: {adamw: {lr: 1, eps: 2}}}", "train: {optimizer: {adamw: {lr: 2}}}", {"train": {"optimizer": {"adamw": {"lr": 2, "eps": 2}}}}),
    ],
)  # fmt: skip
def test_mappings_merge_and_all_else_replaces(parent: str, child: str, merged: object) -> None:
    assert merge(tree(parent), tree(child)).plain() == merged


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("model: gpt2", "model: {use: gpt2}"),
        ("cluster: 8", "cluster: {use: '8'}"),
        ("data: digits8", "data: {use: digits8}"),
        ("train: {optimizer: sgd}", "train: {optimizer: {sgd: {}}}"),
        ("train: {optimizer: {sgd: }}", "train: {optimizer: {sgd: {}}}"),
        ("techniques: {dear: }", "techniques: {dear: {}}"),
        ("stacks: [ddp, dear]", "stacks: {ddp: {ddp: {}}, dear: {dear: {}}}"),
        ("stacks: [[dear, acp]]", "stacks: {dear+acp: {dear: {}, acp: {}}}"),
        ("stacks: {a: dear}", "stacks: {a: {dear: {}}}"),
        ("stacks: {a: [dear, {acp: {rank: 3}}]}", "stacks: {a: {dear: {}, acp: {rank: 3}}}"),
        ("stacks: {a: {acp: {rank: 3}, dear: }}", "stacks: {a: {acp: {rank: 3}, dear: {}}}"),
        ("stacks: 3", "stacks: 3"),
        ("train: 3", "train: 3"),
    ],
)
def test_short_forms_are_written_out_once(short: str, long: str) -> None:
    written_out = normalise(tree(short))
    assert written_out.plain() == tree(long).plain()
    assert normalise(written_out) == written_out


def test_a_child_keeps_the_places_of_both(lab: Path) -> None:
    composed = extended(lab, "train: {steps: 20}\nstacks: {merged: [together]}\n")
    places = {
        ".".join(path): (node.plain(), str(node.where))
        for path in [("train", "steps"), ("train", "batch_per_worker"), ("model", "seq_len"), ("cluster", "nodes")]
        if (node := composed.find(path)) is not None
    }
    assert places == {
        "train.steps": (20, "child.yaml:2:16"),
        "train.batch_per_worker": (8, "parent.yaml:4:27"),
        "model.seq_len": (64, "parent.yaml:3:29"),
        "cluster.nodes": (4, "clusters/tiny.yaml:1:8"),
    }
    assert composed.find(("stacks",)).plain() == {"plain": {"each": {}}, "merged": {"together": {}}}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("child", "stacks"),
    [
        ("stacks: [each]", {"each": {"each": {}}}),
        ("stacks: {merged: {squeeze: {rank: 8}}}", {"plain": {"each": {}}, "merged": {"together": {}, "squeeze": {"rank": 8}}}),
        ("stacks: {merged: squeeze}", {"plain": {"each": {}}, "merged": {"squeeze": {}}}),
        ("stacks: {merged: null, more: [each]}", {"plain": {"each": {}}, "more": {"each": {}}}),
    ],
)  # fmt: skip
def test_lists_of_techniques_replace_and_mappings_change(lab: Path, child: str, stacks: object) -> None:
    assert extended(lab, child).find(("stacks",)).plain() == stacks  # type: ignore[union-attr]


def test_a_name_is_not_inherited(lab: Path) -> None:
    assert extended(lab, "seeds: [1]\n").get("name") is None
    assert extended(lab, "seeds: [1]\n").get("extends") is None


def test_parents_are_found_by_name_and_by_path(lab: Path) -> None:
    (lab / "recipes" / "base.yaml").write_text(PARENT)
    (lab / "below").mkdir()
    for name in ("base", "../recipes/base.yaml", str(lab / "recipes" / "base.yaml")):
        child = lab / "below" / "child.yaml"
        child.write_text(f"extends: {name}\nseeds: [5]\n")
        composed = compose(child)
        assert [os.path.realpath(file) for file in composed.files] == [str(child), str(lab / "recipes" / "base.yaml")]


def test_parents_of_parents(lab: Path) -> None:
    (lab / "a.yaml").write_text(PARENT)
    (lab / "b.yaml").write_text("extends: a.yaml\ntrain: {steps: 11}\nseeds: [1]\n")
    (lab / "c.yaml").write_text("extends: b.yaml\ntrain: {precision: bf16}\n")
    composed = compose("c.yaml")
    assert composed.tree.find(("train", "steps")).value == 11  # type: ignore[union-attr]
    assert [file.name for file in composed.files] == ["c.yaml", "b.yaml", "a.yaml"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"r": "extends: r.yaml"}, "r.yaml:1:10: extends leads in a circle: r.yaml extends r.yaml; remove one of them [E140]"),
        ({"r": "extends: a.yaml", "a": "extends: b.yaml", "b": "extends: a.yaml"},
         "b.yaml:1:10: extends leads in a circle: a.yaml extends b.yaml extends a.yaml; remove one of them [E140]"),
        ({"r": "extends: [a, b]"}, "r.yaml:1:10: extends is a list; name exactly one parent: extends: base.yaml [E141]"),
        ({"r": "extends: 3"}, "r.yaml:1:10: extends is 3; name exactly one parent: extends: base.yaml [E141]"),
        ({"r": "extends:"}, "r.yaml:1:9: extends is nothing; name exactly one parent: extends: base.yaml [E141]"),
        ({"r": "extends: a.yaml"}, "r.yaml:1:10: extends 'a.yaml': there is no such file; orch list recipes names the ones that can be found [E100]"),
        ({"r": "extends: quikstart"}, "r.yaml:1:10: there is no recipe named 'quikstart'; did you mean quickstart? [E150]"),
        ({"r": "extends: clusters/"}, "r.yaml:1:10: extends 'clusters/': is a directory, not a file; name the YAML file inside it [E101]"),
        ({"r": "extends: a.yaml", "a": "x: [1\n"}, "a.yaml:2:1: not valid YAML: did not find expected ',' or ']' while parsing a flow sequence that begins in line 1 [E106]"),
        ({"r": "cluster: clusters/none.yaml"}, "r.yaml:1:10: cluster 'clusters/none.yaml': there is no such file; orch list recipes names the ones that can be found [E100]"),
        ({"r": "cluster: {use: [a]}"}, "r.yaml:1:16: cluster.use is a list; it is the name of a cluster: orch list clusters [E214]"),
        ({"r": "cluster: {use: '${x}'}\nx: tiny"}, "r.yaml:1:16: cluster.use is '${x}'; it is the name of a cluster: orch list clusters [E214]"),
        ({"r": "model: {profile: none.csv}"}, "r.yaml:1:18: there is no profile 'none.csv'; paths count from the folder of the file that holds them [E100]"),
        ({"r": "stacks: {a: [3]}"}, "r.yaml:1:14: a stack holds names of techniques, not 3; write [NAME, {NAME: {knob: value}}] [E228]"),
        ({"r": "stacks: [a, a]"}, "r.yaml:1:13: the stack 'a' stands here twice; remove one [E228]"),
    ],
)  # fmt: skip
def test_what_cannot_be_composed(lab: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (lab / f"{name}.yaml").write_text(text)
    with pytest.raises(OrchError) as caught:
        compose("r.yaml")
    assert str(caught.value) == message


def test_a_long_line_of_parents_ends(lab: Path) -> None:
    for index in range(30):
        (lab / f"r{index}.yaml").write_text(f"extends: r{index + 1}.yaml\n")
    with pytest.raises(OrchError, match=r"r19.yaml:1:10: more than 20 recipes extend one another \[E140\]"):
        compose("r0.yaml")


def test_paths_count_from_their_own_file(lab: Path) -> None:
    (lab / "sub").mkdir()
    (lab / "sub" / "p.csv").write_text("x")
    (lab / "sub" / "r.yaml").write_text("model: {profile: p.csv}\ncluster: ../clusters/tiny.yaml\n")
    (lab / "child.yaml").write_text("extends: sub/r.yaml\n")
    for recipe in ("sub/r.yaml", "child.yaml"):
        profile = compose(recipe).tree.find(("model", "profile"))
        assert profile is not None
        assert profile.value == str(lab / "sub" / "p.csv")
    override = compose("sub/r.yaml", ["model.profile=sub/p.csv"]).tree.find(("model", "profile"))
    assert override is not None
    assert override.value == str(lab / "sub" / "p.csv")


def test_references_see_overrides_and_the_cluster(lab: Path) -> None:
    (lab / "r.yaml").write_text("cluster: tiny\nmodel: {use: m, width: '${cluster.nodes}'}\n")
    width = compose("r.yaml", ["cluster.nodes=16"]).tree.find(("model", "width"))
    assert width is not None
    assert (width.value, str(width.where)) == (16, "r.yaml:2:24")


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "\n"])
def test_a_recipe_needs_a_name(lab: Path, name: str) -> None:
    with pytest.raises(OrchError, match=r"a recipe has no name here; give a name or the path of a YAML file \[E150\]"):
        locate(name)


def test_links_in_a_circle_and_to_nothing_are_said(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "gone.yaml").symlink_to("nowhere.yaml")
    with pytest.raises(OrchError, match=r"loop\.yaml: cannot be read: Too many levels of symbolic links \[E101\]"):
        compose(tmp_path / "loop.yaml")
    with pytest.raises(OrchError, match=r"gone\.yaml: there is no such file; orch list recipes"):
        compose(tmp_path / "gone.yaml")
