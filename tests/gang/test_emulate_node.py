"""The program that starts nodes: its plan survives the way, and what goes wrong is said in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from orch.gang import emulate_node
from orch.gang.emulate_node import Plan, Start, resource_of

RUN = "from orch.gang.emulate_node import main; main()"


def test_a_plan_survives_the_way() -> None:
    plan = Plan(Start("10.0.0.1", "/d/h"), [Start("10.0.0.2", "/d/0", "/run/netns/a", "/sys/a", resource_of(0))])
    assert Plan.from_json(plan.to_json()) == plan


def test_a_node_that_cannot_enter_its_namespace_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate_node, "_head", lambda start: {"address": "10.0.0.1:1", "head": os.getpid()})
    plan = Plan(Start("10.0.0.1", "/d/h"), [Start("10.0.0.2", "/d/0", "/run/netns/absent-of-course")])
    with pytest.raises(RuntimeError, match="No such file or directory: '/run/netns/absent-of-course'"):
        emulate_node.start_all(plan)


def test_the_program_answers_with_the_error_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], input="{}", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"error": "'head'"}
