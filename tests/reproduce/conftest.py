"""A small paper whose numbers can be worked out by hand: three layers, two workers, 2 s a message and 1 s a byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from orch.reproduce.paper import Paper, load

RECIPE = """\
orch: 1
model: {profile: three.json}
train: {batch_per_worker: 2, optimizer: {sgd: {lr: 0.1}}}
compute: {step: 4s, forward: 25%}
cluster:
  nodes: 2
  devices_per_node: 1
  device: {kind: cpu, name: none, memory_bandwidth: 1TB/s, source: an example}
  links:
    inter:
      source: an example
      alpha_band: 0%
      beta_band: 0%
      measured:
        - {ranks: 2, alpha: 2s, beta: 250ms/B, evidence: [tiny/fits/*]}
stacks:
  wfbp: [wfbp]
  one: [single-bucket]
"""
# Forward 1 s, backward 1 s a layer, each gradient 4 bytes: 3 s a message.
# wfbp: ready at 2, 3, 4; ends at 5, 8, 11. one: 4 + 2 + 3 = 9. At twice the speed 1, 1.5, 2; 4, 7, 10; and 2 + 5 = 7.
WFBP_S, ONE_S = 11.0, 9.0
MODULES = [
    {"name": f"l{i}", "flops": 1, "activation_elements": 0, "forward_s": 1.0, "backward_s": 1.0} for i in range(3)
]
PROFILE = {
    "name": "three",
    "source": "an example",
    "modules": MODULES,
    "tensors": [{"name": f"l{i}.w", "shape": [1], "modules": [f"l{i}"]} for i in range(3)],
    "ready_order": ["l2.w", "l1.w", "l0.w"],
}
TABLE = """\
# seconds a step
id,size,step,wfbp,one
tiny/small,1,4,11,9
tiny/fast,2,2,10,7
"""
PAPER = """\
orch: 1
paper: tiny
title: A paper about nothing
venue: nowhere
evidence:
  times: {table: times.csv, values: step_time, source: table, where: Table 1}
  gain: {value: 1.22, source: abstract, where: abstract}
experiments:
  each:
    recipe: recipe.yaml
    cells: {table: times, set: {compute.step: "${step}s"}}
  small: {recipe: recipe.yaml}
claims:
  - {id: c1, says: faster, metric: speedup, of: one, over: wfbp, in: each, published: times}
  - {id: c2, says: a fifth faster, metric: speedup, of: one, over: wfbp, in: small, published: gain}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The paper's folder."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "three.json").write_text(json.dumps(PROFILE))
    (tmp_path / "times.csv").write_text(TABLE)
    (tmp_path / "tiny.yaml").write_text(PAPER)
    return tmp_path


@pytest.fixture
def changed(folder: Path) -> Callable[..., Paper]:
    """Load the paper with text replaced in its files: `changed(old=new)` by pairs, or whole top-level sections."""

    def load_changed(*pairs: tuple[str, str], recipe: tuple[str, str] | None = None, **sections: str) -> Paper:
        text = PAPER
        for old, new in pairs:
            assert old in text, old
            text = text.replace(old, new)
        if sections:
            data = yaml.safe_load(text) | {key: yaml.safe_load(value) for key, value in sections.items()}
            text = yaml.safe_dump(data, sort_keys=False)
        (folder / "tiny.yaml").write_text(text)
        if recipe is not None:
            assert recipe[0] in RECIPE
            (folder / "recipe.yaml").write_text(RECIPE.replace(*recipe))
        return load(folder / "tiny.yaml")

    return load_changed
