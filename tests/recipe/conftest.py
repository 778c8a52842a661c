"""A project of its own for every test: two small techniques, a cluster, and a recipe that is valid."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.recipe import Recipe, load

GOOD = """\
orch: 1
name: good
model: {use: gpt2, seq_len: 64}
train:
  batch_per_worker: 16
  optimizer: {adamw: {lr: 6e-4}}
  steps: 400
cluster: tiny
techniques: {squeeze: {rank: 4}}
stacks:
  plain: [each]
  merged: [together]
  both: [together, squeeze]
baseline: plain
"""

CLUSTER = """\
nodes: 4
devices_per_node: 2
device: {kind: cpu, name: example, rate: {fp32: 10GFLOP/s}, memory: 16GiB, source: example}
links:
  inter: {alpha: 50us, beta: 0.8ns/B, per: node, source: example}
  intra: {alpha: 5us, beta: 0.1ns/B, source: example}
"""

TECHNIQUE = '''\
"""{name}, for tests."""
from typing import Literal
from orch.technique import *
from orch.technique import Form
from orch.units import Bytes

class Config(Knobs):
    """Knobs."""
    {knobs}

technique = Technique(name="{name}", slot=Slot.{slot}, rewrite=lambda plan, context, config: plan, source="none",
                      lossless={lossless}, config=Config, {more})
'''

TECHNIQUES = {
    "each": {"slot": "SCHEDULE", "knobs": "pass"},
    "together": {
        "slot": "SCHEDULE",
        "knobs": 'size: Bytes = quantity("25MiB", "bucket size", least=1)\n'
        '    planner: Literal["exact", "greedy"] = choice("exact", "how")',
    },
    "squeeze": {
        "slot": "COMPRESSOR",
        "knobs": 'rank: int = count(2, "rank", least=1)\n    share: float = number(0.5, "share", above=0, most=1)\n'
        '    label: str = "x"\n    warm: bool = flag(True, "warm")',
        "lossless": "False",
        "more": "gives=Form.ADDABLE, defaults=('together',), excludes={'alone': 'both own the step'}",
    },
    "sparse-only": {"slot": "EXCHANGE", "knobs": "pass", "more": "needs=frozenset({Form.SPARSE})"},
    "alone": {"slot": "SCHEDULE", "knobs": "pass"},
}


def write_technique(folder: Path, name: str, slot: str, knobs: str, lossless: str = "True", more: str = "") -> Path:
    """Write a technique module and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}.py"
    path.write_text(TECHNIQUE.format(name=name, slot=slot, knobs=knobs, lossless=lossless, more=more))
    return path


@pytest.fixture(scope="session")
def techniques_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of fake techniques; modules are imported once a process, so it is shared."""
    root = tmp_path_factory.mktemp("lab")
    for name, facts in TECHNIQUES.items():
        write_technique(root / "orch_fake_lab", name, **facts)
    return root


@pytest.fixture
def lab(tmp_path: Path, techniques_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder that is also the working directory; the user's configuration is empty."""
    root = tmp_path / "lab"
    (root / "clusters").mkdir(parents=True)
    (root / "clusters" / "tiny.yaml").write_text(CLUSTER)
    (root / "recipes").mkdir()
    (root / "orch.toml").write_text('techniques = ["orch_fake_lab"]\n')
    (root / "orch_fake_lab").symlink_to(techniques_root / "orch_fake_lab")
    monkeypatch.syspath_prepend(str(techniques_root))
    monkeypatch.chdir(root)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return root


@pytest.fixture
def good(lab: Path) -> Path:
    """The valid recipe, as a file of the project."""
    path = lab / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def fault(lab: Path) -> Callable[..., str]:
    """Return the one line that loading a text (or bytes, or the valid recipe) with overrides ends in."""

    def line(text: str | bytes = GOOD, *overrides: str) -> str:
        path = lab / "r.yaml"
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        with pytest.raises(OrchError) as caught:
            load(path, list(overrides))
        message = str(caught.value)
        assert message.isprintable(), message
        return message

    return line


@pytest.fixture
def changed(lab: Path) -> Callable[..., Recipe]:
    """Return the valid recipe with overrides."""

    def recipe(*overrides: str, text: str = GOOD) -> Recipe:
        path = lab / "r.yaml"
        path.write_text(text)
        return load(path, list(overrides))

    return recipe
