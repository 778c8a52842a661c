"""The whole way from a file and overrides to a recipe."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orch.errors import ErrorPage, OrchError, error_pages
from orch.recipe import Recipe, load
from orch.recipe.schema import LATER, RecipeFile
from tests.recipe.conftest import GOOD, write_technique

ROOT = Path(__file__).resolve().parents[2]
KEYS = [
    *RecipeFile.model_fields,
    *LATER,
    "use",
    "steps",
    "lr",
    "nodes",
    "links",
    "0",
    "sgd",
    "adamw",
    "rank",
    "metric",
    "reach",
]

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
        (["seeds.0=3"], "seeds", [3], "default"),
        (["train.optimizer.adamw.betas.1=0.95"], "train.optimizer.adamw.betas", [0.9, 0.95], "default"),
        (["train.optimizer.adamw.betas.1=0.95"], "train.optimizer.adamw.lr", 6e-4, "r.yaml:6:27"),
        ([], "model.seq_len", 64, "r.yaml:3:29"),
        (["model=gpt2"], "model.seq_len", 1024, "default of gpt2"),
        (["data=tokens", "data.path=/nowhere"], "data.path", "/nowhere", "override 2: data.path=/nowhere"),
        (["model=resnet-digits", "data=digits8"], "data.image_size", 8, "default of digits8"),
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
        (["stacks.x=[squeeze, sparse-only]"], "override 1: stacks.x=[squeeze, sparse-only]: 'sparse-only' needs sparse gradients and 'squeeze' gives addable; drop one of them, or make 'sparse-only' a stack of its own [E512]"),
        (["stacks.x=[]"], "override 1: stacks.x=[]: the stack 'x' is empty; name at least one technique: orch list techniques [E228]"),
        (["stacks.x=[each, each]"], "override 1: stacks.x=[each, each]: technique 'each' stands in this stack twice; remove one [E228]"),
        (["train.global_batch=12"], "override 1: train.global_batch=12: train.global_batch 12 cannot be divided among 8 workers; the nearest that can is 16 [E229]"),
        (["seeds=[0, 1]"], "override 1: seeds=[0, 1]: several seeds compare quality, and the stack 'both' is lossy, but there is no target; add target: {metric: val_loss, reach: VALUE} [E230]"),
        (["seeds=[1, 1]"], "override 1: seeds=[1, 1]: seeds holds a seed twice; every seed counts once [E230]"),
        (["train.optimizer.sgd.lr=1"], "override 1: train.optimizer.sgd.lr=1: train.optimizer must hold exactly one of sgd, adam, adamw [E215]"),
        (["train.global_batch=8", "train.batch_per_worker=1"], "override 2: train.batch_per_worker=1: train must hold exactly one of batch_per_worker, global_batch [E215]"),
        (["when.plian.train.steps=1"], "override 1: when.plian.train.steps=1: when names 'plian', which is no stack; did you mean plain? [E232]"),
        (["when.plain.train.stesp=1"], "override 1: when.plain.train.stesp=1: unknown key 'stesp' in when.plain.train; did you mean steps? [E210]"),
        (["uncertain={cluster.links.inter.alhpa: {range: [1us, 2us], source: x}}"], "override 1: uncertain={cluster.links.inter.alhpa: {range: [1us, 2us],...: uncertain names 'cluster.links.inter.alhpa', which is no value of this recipe: there is no key 'alhpa' in cluster.links.inter; did you mean alpha? [E234]"),
        (["uncertain={cluster.links: {range: [1us, 2us], source: x}}"], "override 1: uncertain={cluster.links: {range: [1us, 2us], source: x}}: uncertain names 'cluster.links', which is no single value; name a number or a word below model, train, cluster, techniques, stacks or compute [E234]"),
        (["uncertain={train.steps: {source: x}}"], "override 1: uncertain={train.steps: {source: x}}: uncertain.\"train.steps\" must hold exactly one of range, choices [E215]"),
        (["compute={step: 3s, throughput: 4}"], "override 1: compute={step: 3s, throughput: 4}: must hold exactly one of step, throughput [E215]"),
        (["tune=3"], "override 1: tune=3: tune (an equal tuning budget for every stack) cannot be used yet; remove it [E217]"),
        (["on=locla"], "override 1: on=locla: must be inline, processes, local, emulate, torchrun, HOST:PORT or ray://HOST:PORT; it is 'locla'; did you mean local? [E215]"),
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


# ---- every fault is one line: pages, corpus, fuzz


def blocks(text: str) -> dict[str, str]:
    """Return the sections of a recipe as they are written, by key."""
    found: dict[str, str] = {}
    for line in text.splitlines(keepends=True):
        key = line.split(":")[0] if line[:1].strip() else next(reversed(found))
        found[key] = found.get(key, "") + line
    return found


PAGES = [page for page in error_pages().values() if "E100" <= page.code < "E300" and page.example[0] != "("]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.code)
def test_the_example_of_every_page_gives_its_error(lab: Path, page: ErrorPage) -> None:
    for name in ("twice.yaml", "twice.yml"):
        (lab / "clusters" / name).write_text("")
    write_technique(lab / "orch_fake_lab", "doubled", "SCHEDULE", "pass")
    (lab / "orch_fake_lab" / "broken.py").write_text("import orch_fake_nothing")
    write_technique(lab / "more", "doubled", "SCHEDULE", "pass")
    (lab / "orch.toml").write_text('techniques = ["orch_fake_lab", "more"]\n')
    overrides = re.split(r" (?=[\w.]+=)", page.example[2:]) if page.example.startswith("$ ") else []
    text = GOOD if overrides else "".join({**blocks(GOOD), **blocks(page.example.rstrip("\n") + "\n")}.values())
    (lab / "recipe.yaml").write_text(text)
    with pytest.raises(OrchError) as caught:
        load("recipe.yaml", overrides)
    assert caught.value.code == page.code, str(caught.value)


def check_outcome(path: Path, overrides: list[str]) -> str:
    """Return the one line of a load, or the recipe's name; anything else is a failure of the test."""
    try:
        recipe = load(path, overrides)
    except OrchError as error:
        line = str(error)
        assert line.isprintable()
        assert re.match(r"(r\.yaml(:\d+:\d+)?|clusters/tiny\.yaml|override \d+: .*?): .+ \[E\d{3}\]$", line), line
        return line
    assert recipe.resolved()["orch"] == 1
    return recipe.name


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["each", "together", "squeeze", "tiny", "${name}", "${train}", "???", "25MiB", "5%", "local", "adamw"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6) | st.sampled_from(KEYS), below, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change_of_a_recipe_is_a_recipe_or_one_line(lab: Path, data: st.DataObject) -> None:
    tree = yaml.safe_load(GOOD)
    node, key = tree, data.draw(st.sampled_from(sorted(tree)))
    while isinstance(node[key], dict) and node[key] and data.draw(st.booleans()):
        node, key = node[key], data.draw(st.sampled_from(sorted(node[key])))
    if data.draw(st.booleans()):
        key = data.draw(st.text(max_size=6) | st.sampled_from(KEYS))
    node[key] = data.draw(VALUES)
    path = lab / "r.yaml"
    path.write_text(
        yaml.safe_dump(tree, allow_unicode=True, sort_keys=False), encoding="utf-8", errors="surrogateescape"
    )
    check_outcome(path, [])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(GOOD)), st.integers(0, 12), st.text(alphabet=" \t\n:-[]{}#&*!|>'\"%@`?,<~ab1.$", max_size=6))
def test_any_slip_of_the_pen_is_a_recipe_or_one_line(lab: Path, begin: int, length: int, text: str) -> None:
    path = lab / "r.yaml"
    path.write_text(GOOD[:begin] + text + GOOD[begin + length :])
    check_outcome(path, [])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(
            lambda path, value: f"{'.'.join(path)}={value}",
            st.lists(st.sampled_from(KEYS) | st.text(max_size=4), min_size=1, max_size=4),
            st.text(max_size=8) | VALUES.map(json.dumps),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_overrides_are_a_recipe_or_one_line(lab: Path, overrides: list[str]) -> None:
    path = lab / "r.yaml"
    path.write_text(GOOD)
    check_outcome(path, overrides)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_are_one_line(lab: Path, noise: bytes) -> None:
    path = lab / "r.yaml"
    path.write_bytes(noise)
    assert check_outcome(path, []).startswith("r.yaml")


# ---- what ships


@pytest.mark.parametrize(("name", "workers"), [("quickstart", 4), ("resnet50-v100", 16), ("gpt2-a100", 32)])
def test_a_shipped_recipe_is_right(lab: Path, name: str, workers: int) -> None:
    recipe = load(name)
    assert (recipe.name, recipe.cluster.world_size) == (name, workers)
    assert recipe.baseline.techniques == ("torch-ddp",)
    assert load(name, ["train.steps=3"]).train.steps == 3


def test_checking_is_quick_and_light() -> None:
    script = (
        "import sys, time; from orch.recipe import load\n"
        "begin = time.process_time(); load('quickstart'); spent = time.process_time() - begin\n"
        "heavy = {'numpy', 'torch', 'ray', 'mlflow', 'optuna', 'hydra', 'omegaconf', 'transformers'} & set(sys.modules)\n"
        "print(sorted(heavy), spent)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    heavy, spent = out.rsplit(" ", 1)
    assert heavy == "[]"
    assert float(spent) < 0.25  # 0.03 s alone; the rest is for a busy machine


def test_experts_are_spread_over_the_workers_that_divide_them(changed: Changed) -> None:
    recipe = changed("model={use: char-moe, experts: 4}")
    assert (recipe.layout.experts, recipe.layout.slices, recipe.layout.replicas) == (4, 1, 2)
    recipe = changed("model={use: char-moe, experts: 4}", "parallel={experts: 2, slices: 2}")
    assert (recipe.layout.experts, recipe.layout.slices, recipe.layout.replicas) == (2, 2, 2)
    parallel = {"experts": 2, "slices": 2, "tensor": 1, "tokens": "whole", "pipeline": 1}
    assert recipe.resolved()["parallel"] == parallel


def test_workers_that_share_samples_read_one_batch(changed: Changed) -> None:
    recipe = changed(
        "model={use: char-moe, experts: 4}",
        "parallel={tensor: 4}",
        "train={global_batch: 16, optimizer: {sgd: {lr: 0.1}}}",
    )
    assert (recipe.layout.readers, recipe.batch_per_worker()) == (2, 8)
    with pytest.raises(OrchError, match="global_batch 15 cannot be divided among 2 workers"):
        changed(
            "model={use: char-moe}", "parallel={tensor: 4}", "train={global_batch: 15, optimizer: {sgd: {lr: 0.1}}}"
        )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["parallel={experts: 2}"],
            "override 1: parallel={experts: 2}: parallel says where experts live, and model gpt2 has none",
        ),
        (
            ["model={use: char-moe, experts: 6}", "parallel={experts: 4}"],
            "6 experts of blocks.1.moe cannot be shared out",
        ),
        (["model={use: char-moe}", "parallel={experts: 3}"], "experts spread over 3 x 1 ranks do not fill 8 ranks"),
        (["model={use: char-moe}", "parallel={tensor: 3}"], "samples shared by 3 ranks do not fill 8 ranks"),
        (
            ["model={use: char-moe, num_heads: 2}", "parallel={tensor: 4}"],
            "2 heads of blocks.0 cannot be shared out among 4 workers",
        ),
        (["stacks.x=[schemoe]"], "override 1: stacks.x=[schemoe]: 'schemoe' is for mixtures of experts"),
        (["stacks.plain=[naive-moe]"], "'naive-moe' is for mixtures of experts, and model gpt2 has none"),
        (["model=char-moe", "stacks.plain=[torch-ddp]"], "'torch-ddp' brings a runtime of its own"),
    ],
)
def test_what_mixtures_cannot_do_is_said(changed: Changed, overrides: list[str], message: str) -> None:
    with pytest.raises(OrchError, match=re.escape(message)):
        changed(*overrides)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        # Two keys that are one once they are read.
        ("cluster.speed={0: 0.5, 00: 0.7}", "the name '00' is another way to write rank 0; write 0"),
        ("cluster.speed={1: 0.5, '\u0661': 0.7}", "the name '\u0661' is another way to write rank 1"),
        ("cluster.unequal={1: {speed: 0.5}, 01: {speed: 0.7}}", "the name '01' is another way to write rank 1"),
        ("cluster.links.inter={measured: [{ranks: 2, table: {1KiB: 1us, 1024B: 5us, 1MiB: 9us}}], source: s}",
         "table has 1KiB and 1024B, which are the same size; keep one"),
        ("cluster.links.inter={measured: [{ranks: 2, alpha: 1us, beta: 1ns/B}, {ranks: 2, alpha: 2us, beta: 1ns/B}], source: s}",
         "measures the all-reduce of 2 ranks twice; keep one"),
        # Names that differ from one of the file in case, `_` or form of Unicode only.
        ("stacks.Plain=[each]", "'Plain' collides with 'plain' (r.yaml:11:3); keep one of them [E110]"),
        ("stacks.PL\u0410IN=[]", "the stack 'PL\u0410IN' is empty"),  # a Cyrillic A is another letter
        ("techniques.Squeeze={}", "'Squeeze' collides with 'squeeze'"),
        ("cluster.Nodes=3", "'Nodes' collides with 'nodes'"),
        # Words that say nothing.
        ("name=&x", "'&x' is a name for a value that is not there; KEY=null removes a key"),
        ("cluster.name=[a]", "cluster.name must be text; it is a list"),
        ("cluster.device.source='  '", "must be text, not blank"),
        ("train.checkpoint={path: ''}", "must be text, not empty"),
        # Names of a closed list as keys.
        ("cluster.device.rate={fp23: 1TFLOP/s}", "unknown key 'fp23' in cluster.device.rate; did you mean fp32? [E210]"),
        ("cluster.labels={'a b': c}", "the name must be made of letters, digits and . _ / - between two of them; it is 'a b'"),
        ("cluster.labels={a: 'b c'}", "cluster.labels.a must be made of letters, digits and"),
        # More than can be counted, or held in memory.
        ("cluster.nodes=9000000000000000000", "1.8e+19 ranks; at most 1099511627776 can be planned"),
        ("cluster={use: tiny, nodes: 1000000, jitter: 5%}", "2000000 ranks that differ (jitter, speed, unequal); at most"),
        ("cluster={use: tiny, nodes: 1000000, speed: {0: 0.5}}", "2000000 ranks that differ"),
    ],
)  # fmt: skip
def test_what_would_be_taken_for_something_else_is_refused(fault: Fault, override: str, line: str) -> None:
    assert line in fault(GOOD, override)


def test_many_ranks_that_are_alike_are_planned(changed: Changed) -> None:
    assert changed("cluster.nodes=1000000000").described.world_size == 2_000_000_000


def test_a_child_cannot_add_a_stack_that_differs_in_case(fault: Fault, good: Path) -> None:
    line = fault("extends: good.yaml\nstacks: {Plain: [together]}\n")
    assert "r.yaml:2:10: 'Plain' collides with 'plain' (good.yaml:11:3); keep one of them [E110]" in line
