"""The files that `orch new` writes: a recipe and a technique that work as they are, and a test beside the technique."""

from __future__ import annotations

RECIPE = """\
# {name}: what this experiment is to answer, in one line.
# orch check {file}    says whether it is right;  orch show recipe    lists every field
orch: 1
name: {name}
model: {{use: resnet-digits}}            # orch list models; orch show resnet-digits tells what can be changed
data: digits8                          # orch list data
train:
  batch_per_worker: 32
  optimizer: {{sgd: {{lr: 0.1}}}}
cluster: local-4                       # orch list clusters; cluster.nodes=2 works on the command line
stacks:                                # orch list techniques
  ddp: [torch-ddp]
  mine: [mg-wfbp]
baseline: ddp
measure: {{blocks: 8, steps: 20, warmup: 10}}
on: local
"""

TECHNIQUE = '''\
"""{title}: one line, what it changes about a step. Here: every few neighbouring gradients share an all-reduce.

Helps: many small tensors. Does not: few large ones. Lossless.
Source: the paper, section and equation.
"""

from __future__ import annotations

from orch.plan import Plan
from orch.technique import Context, Knobs, Slot, Technique, count, fuse_each_wave


class Config(Knobs):
    """What a recipe may set. `orch show {name}`, the schema and the ranges of sweeps derive from here."""

    tensors: int = count(4, "gradients that share an all-reduce", least=1)


def ends(sends: int, tensors: int) -> list[int]:
    """Return the index after the last member of each bucket, ascending, the last being `sends`."""
    return [*range(tensors, sends, tensors), sends]


def rewrite(plan: Plan, context: Context, config: Config) -> Plan:
    """Fuse the all-reduces of every wave, in launch order."""
    return fuse_each_wave(plan, lambda plan, step, sends: ends(len(sends), config.tensors))


technique = Technique(
    name="{name}",
    slot=Slot.SCHEDULE,
    rewrite=rewrite,
    source="the paper, as you would cite it",
    lossless=True,
    config=Config,
)
'''

TEST = '''\
"""{title}: what its pass does to a plan. `orch test {name}` runs the contract that holds for every technique."""

from __future__ import annotations

import pytest

from {module} import Config, ends, technique


@pytest.mark.parametrize(
    ("sends", "tensors", "expected"),
    [(10, 4, [4, 8, 10]), (8, 4, [4, 8]), (3, 4, [3]), (1, 1, [1])],
)
def test_every_gradient_is_in_one_bucket(sends: int, tensors: int, expected: list[int]) -> None:
    assert ends(sends, tensors) == expected


def test_a_bucket_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="tensors"):
        Config(tensors=0)


def test_the_name_users_write() -> None:
    assert technique.name == "{name}"
'''

PAPER = """\
# {name}: what this paper says, as data that anybody can run again.   orch reproduce {name}
# docs/claims.md has every field and the rule that judges; the numbers here are an example to write over.
orch: 1
paper: {name}
title: The title of your paper
venue: where and when it appears
repository: where your code is

evidence:                              # every published number once, and how it came about
  results:
    table: {name}/results.csv          # a row a cell, a column a stack
    values: step_time                  # or throughput
    source: log                        # table, log, repository, text, abstract, plot
    where: Table 1
  average: {{value: 1.1, source: abstract, where: abstract}}

experiments:                           # a recipe, and the cells it is run for
  main:
    says: two models on 16 GPUs
    recipe: {name}/main.yaml
    cells:
      table: results
      set: {{model: "${{model}}", train.batch_per_worker: "${{batch}}", compute.step: "${{compute}}s"}}

claims:
  - id: faster                         # judged in every cell of the table
    says: Merging is faster than a message a gradient
    metric: speedup                    # step_time, throughput, scaling_efficiency, bytes, holds, ...
    of: mine
    over: wfbp
    in: main
    published: results
  - id: on-average
    says: Ten percent faster on average
    metric: speedup
    of: mine
    over: wfbp
    in: main
    aggregate: mean
    published: average
  - id: accuracy
    says: Accuracy does not change
    source: text
    missing: a training run            # what cannot be run here says what it lacks
"""

PAPER_RECIPE = """\
# The experiment of {name}; also on its own: orch plan {file}
orch: 1
model: resnet50
train:
  batch_per_worker: 64
  optimizer: {{sgd: {{lr: 0.1}}}}
compute: {{step: 200ms}}                 # one worker by itself; the paper's cells say their own
cluster: v100-4x4-10gbe                # orch list clusters; or describe yours: orch show v100-4x4-10gbe
stacks:
  wfbp: [wfbp]
  mine: [mg-wfbp]
baseline: wfbp
uncertain:                             # what nobody measured: a range, and why
  compute.forward: {{range: [30%, 37%], source: two products in backward for each one in forward}}
"""

PAPER_TABLE = """\
# Seconds a step, and of computing alone; the log of your runs, by commit
id,model,batch,compute,wfbp,mine
{name}/main/resnet50,resnet50,64,0.200,0.290,0.245
{name}/main/resnet152,resnet152,32,0.280,0.690,0.560
"""
