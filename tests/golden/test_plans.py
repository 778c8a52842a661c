"""Golden plans: a refactor leaves these files byte-equal; any other change shows what it does to a plan, as a diff.

`python -m tests.golden.test_plans` writes them anew.
"""

import json
from pathlib import Path

import pytest

from orch import registry
from orch.plan import Plan, from_json, to_json
from orch.testing.small import cluster, member, planned, profile

FOLDER = Path(__file__).parent

STACKS = {
    "torch-ddp": {"torch-ddp": {"bucket_cap": "200B", "first_bucket": "30B"}},
    "s-sgd": {"s-sgd": {}},
    "mg-wfbp": {"mg-wfbp": {}},
    "mg-wfbp-greedy": {"mg-wfbp": {"planner": "greedy"}},
    "dear": {"dear": {"bucket": "200B", "prefetch": 1}},
    "top-k": {"top-k": {"density": 0.1}, "bucketed": {"cap": "200B", "first_bucket": "30B"}},
    "power-sgd": {"power-sgd": {"rank": 2}},
    "dear-acp-sgd": {"dear": {"bucket": "200B"}, "acp-sgd": {"rank": 2}},
}


def plan_of(stack: str) -> Plan:
    model = profile([((8, 3), (8,)), (5,), ((6, 10), (6,))], [2.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    members = [member(registry.technique(name), **knobs) for name, knobs in STACKS[stack].items()]
    lookup = {name: registry.technique(name) for name in registry.techniques()}
    return planned(model, cluster(4, alpha_s=0.5, beta_s_per_byte=0.01), members, lookup)


def text_of(plan: Plan) -> str:
    """The plan as JSON with a line a task, so that a diff shows tasks."""
    data = to_json(plan)
    steps = [",\n".join(f"  {json.dumps(task)}" for task in step) for step in data.pop("steps")]
    head = json.dumps(data)[:-1]
    body = "\n ],\n [\n".join(steps)
    return f'{head}, "steps": [\n [\n{body}\n ]\n]}}\n'


@pytest.mark.parametrize("stack", STACKS)
def test_plans_are_as_they_were(stack):
    text = (FOLDER / f"{stack}.json").read_text(encoding="utf-8")
    assert text_of(plan_of(stack)) == text
    assert from_json(json.loads(text)) == plan_of(stack)


def test_no_golden_file_is_left_over():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(STACKS)


if __name__ == "__main__":
    for name in STACKS:
        (FOLDER / f"{name}.json").write_text(text_of(plan_of(name)), encoding="utf-8")
