"""The whole way from a file and overrides to a recipe."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from orch.recipe import Recipe, load
from tests.recipe.conftest import GOOD

Fault = Callable[..., str]
Changed = Callable[..., Recipe]


def test_a_recipe_is_read(good: Path) -> None:
    recipe = load(good)
    assert (recipe.name, recipe.model.name, recipe.spec.model.arguments) == ("good", "gpt2", {"seq_len": 64})
    assert (recipe.train.optimizer.name, recipe.train.optimizer.settings["lr"]) == ("adamw", 6e-4)
    assert recipe.cluster.world_size == 8
    assert recipe.cluster.name == "tiny"
    assert recipe.stacks["both"].techniques == ("squeeze", "together")
    assert recipe.stacks["both"].members[0].config.rank == 4
    assert not recipe.stacks["both"].lossless
    assert recipe.baseline.name == "plain"


def test_the_order_of_a_stack_means_nothing(changed: Changed) -> None:
    one, other = changed("stacks.both=[together, squeeze]"), changed("stacks.both=[squeeze, together]")
    assert one.stacks["both"] == other.stacks["both"]


def test_an_empty_slot_is_filled_as_the_others_say(changed: Changed) -> None:
    members = changed("stacks.alone=[squeeze]").stacks["alone"].members
    assert [(member.name, member.given) for member in members] == [("squeeze", True), ("together", False)]


def test_a_resolved_recipe_is_the_same_recipe(changed: Changed, lab: Path) -> None:
    recipe = changed("train.steps=7", "techniques.together.size=1MiB", "cluster.nodes=2", "name=1.10")
    again = lab / "again.yaml"
    again.write_text(yaml.safe_dump(recipe.resolved(), sort_keys=False))
    loaded = load(again)
    assert loaded.resolved() == recipe.resolved()
    assert (loaded.spec.train, loaded.cluster, loaded.name) == (recipe.spec.train, recipe.cluster, "1.10")
    knobs = [{member.name: member.config for member in stack.members} for stack in recipe.stacks.values()]
    assert [{member.name: member.config for member in stack.members} for stack in loaded.stacks.values()] == knobs


def test_a_recipe_is_frozen_and_travels(changed: Changed) -> None:
    recipe = changed()
    with pytest.raises(AttributeError):
        recipe.path = Path("x")  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(recipe.spec)) == recipe.spec


@pytest.mark.parametrize(
    ("overrides", "path", "value", "where"),
    [
        ([], "train.steps", 400, "r.yaml:7:10"),
        ([], "train.optimizer.adamw.lr", 6e-4, "r.yaml:6:27"),
        ([], "train.precision", "fp32", "default"),
        ([], "train.global_batch", None, "default"),
        ([], "measure.blocks", 8, "default"),
        ([], "cluster.nodes", 4, "clusters/tiny.yaml:1:8"),
        (["cluster.nodes=2"], "cluster.nodes", 2, "override 1: cluster.nodes=2"),
        (["name=x", "train.steps=3"], "train.steps", 3, "override 2: train.steps=3"),
        ([], "stacks.both.squeeze.rank", 4, "r.yaml:9:30"),
        ([], "stacks.both.squeeze.share", 0.5, "default of squeeze"),
        (["stacks.both.squeeze.rank=8"], "stacks.both.squeeze.rank", 8, "override 1: stacks.both.squeeze.rank=8"),
        (["stacks.both.squeeze.rank=8"], "techniques.squeeze.rank", 4, "r.yaml:9:30"),
        ([], "model.use", "gpt2", "r.yaml:3:14"),
        ([], "baseline", "plain", "r.yaml:14:11"),
    ],
)
def test_every_value_knows_where_it_comes_from(
    changed: Changed, overrides: list[str], path: str, value: object, where: str
) -> None:
    origin = changed(*overrides).origin(path)
    assert (origin.value, str(origin.where)) == (value, where)


def test_an_origin_tells_what_it_replaced(changed: Changed) -> None:
    assert str(changed("train.steps=3").origin("train.steps")) == (
        "train.steps = 3  (override 1: train.steps=3)\n  instead of 400  (r.yaml:7:10)"
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["baseline=plian"], "override 1: baseline=plian: baseline 'plian' is no stack of this recipe; did you mean plain? [E233]"),
        (["stacks.both=[squeze]"], "override 1: stacks.both=[squeze]: technique 'squeze' is not known; did you mean squeeze? (all: orch list techniques) [E220]"),
        (["techniques.together.size=25"], "override 1: techniques.together.size=25: 25 is not a size; write a number with its unit, such as 25MiB [E215]"),
        (["techniques.squeeze.rnak=1"], "override 1: techniques.squeeze.rnak=1: unknown key 'rnak' in techniques.squeeze; did you mean rank? [E210]"),
        (["stacks.both={together: , squeeze: {share: 2}}"], "override 1: stacks.both={together: , squeeze: {share: 2}}: stacks.both.squeeze.share must be at most 1; it is 2 [E213]"),
        (["techniques.alone={}"], "override 1: techniques.alone={}: knobs for technique 'alone', which no stack uses; remove them, or name it in a stack [E224]"),
        (["stacks.x=[each, together]"], "override 1: stacks.x=[each, together]: 'each' and 'together' both fill slot schedule; keep one, or make 'together' a stack of its own [E510]"),
        (["stacks.x=[alone, squeeze]"], "override 1: stacks.x=[alone, squeeze]: 'squeeze' and 'alone' exclude one another: both own the step; drop 'alone' [E511]"),
        (["stacks.x=[squeeze, sparse-only]"], "override 1: stacks.x=[squeeze, sparse-only]: 'sparse-only' needs sparse gradients and 'squeeze' gives low-rank; drop one of them, or make 'sparse-only' a stack of its own [E512]"),
        (["stacks.x=[]"], "override 1: stacks.x=[]: the stack 'x' is empty; name at least one technique: orch list techniques [E228]"),
        (["stacks.x=[each, each]"], "override 1: stacks.x=[each, each]: technique 'each' stands in this stack twice; remove one [E228]"),
        (["train.global_batch=12"], "override 1: train.global_batch=12: train.global_batch 12 cannot be divided among 8 workers; the nearest that can is 16 [E229]"),
        (["seeds=[0, 1]"], "override 1: seeds=[0, 1]: several seeds compare quality, and the stack 'both' is lossy, but there is no target; add target: {metric: val_loss, reach: VALUE} [E230]"),
        (["seeds=[1, 1]"], "override 1: seeds=[1, 1]: seeds holds a seed twice; every seed counts once [E230]"),
        (["train.optimizer.sgd.lr=1"], "override 1: train.optimizer.sgd.lr=1: train.optimizer must hold exactly one of sgd, adam, adamw [E215]"),
        (["train.global_batch=8", "train.batch_per_worker=1"], "override 2: train.batch_per_worker=1: train must hold exactly one of batch_per_worker, global_batch [E215]"),
        (["when.plian.train.steps=1"], "override 1: when.plian.train.steps=1: when names 'plian', which is no stack; did you mean plain? [E232]"),
        (["when.plain.train.stesp=1"], "override 1: when.plain.train.stesp=1: unknown key 'stesp' in when.plain.train; did you mean steps? [E210]"),
        (["tune=3"], "override 1: tune=3: tune (an equal tuning budget for every stack) cannot be used yet; remove it [E217]"),
        (["on=locla"], "override 1: on=locla: must be local, emulate, torchrun, slurm, ray://HOST:PORT or HOST:PORT; it is 'locla'; did you mean local? [E215]"),
        (["orch=2"], "override 1: orch=2: must be 1, the only version this orch reads; it is 2 [E215]"),
        (["modle.use=x"], "override 1: modle.use=x: unknown key 'modle'; did you mean model? [E210]"),
        (["model.python=a.b:c"], "override 1: model.python=a.b:c: model must hold exactly one of use, python, profile [E215]"),
        (["cluster.links.inter.alpha=5"], "override 1: cluster.links.inter.alpha=5: 5 is not a time; write a number with its unit, such as 50us [E215]"),
        (["cluster=tinny"], "override 1: cluster=tinny: there is no cluster named 'tinny'; did you mean tiny? [E150]"),
        (["stacks.a/b=[each]"], "override 1: stacks.a/b=[each]: the name 'a/b' must be printable text of at most 100 characters, without a slash and not beginning with . or - [E215]"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(fault: Fault, overrides: list[str], message: str) -> None:
    assert fault(GOOD, *overrides) == message


def test_when_changes_one_stack_only(changed: Changed) -> None:
    recipe = changed("when.both.train.optimizer={sgd: {lr: 0.5}}", "when.merged.train.global_batch=80")
    assert recipe.stacks["both"].train.optimizer.name == "sgd"
    assert recipe.stacks["plain"].train == recipe.train
    assert (recipe.batch_per_worker("merged"), recipe.batch_per_worker("plain")) == (10, 16)
