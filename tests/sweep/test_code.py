"""What a cell hangs on beside its recipe: source, versions, machines."""

from __future__ import annotations

from importlib import metadata

from orch import registry
from orch.sweep import code


def test_every_technique_of_the_stacks_has_its_source_and_kernels(recipe) -> None:
    found = code.sources(recipe())
    assert set(found) == {name for stack in recipe().stacks.values() for name in stack.techniques}
    assert {"acp_sgd.py", "power_sgd_kernels.py"} <= set(found["acp-sgd"])  # what runs stands in another module
    assert "def rewrite" in found["mg-wfbp"]["mg_wfbp.py"]


def test_a_changed_line_changes_one_digest(recipe) -> None:
    texts = code.sources(recipe())
    changed = {**texts, "mg-wfbp": {"mg_wfbp.py": "x"}}
    old, new = code.digests(texts), code.digests(changed)
    assert {name for name in old if old[name] != new[name]} == {"mg-wfbp"}
    assert registry.technique("mg-wfbp").name in old


def test_a_simulation_hangs_on_no_torch() -> None:
    assert set(code.versions("simulated")) == {"orch"}
    assert code.versions("measured")["torch"] == metadata.version("torch")


def test_machines_here_and_elsewhere() -> None:
    assert code.machines(None, here=True) == {}
    assert code.machines("10.0.0.1:6379", here=False) == {"at": "10.0.0.1:6379"}
    assert code.machines("local", here=True) == code.machines("processes", here=True)
    assert code.machines("local", here=True)["cores"] >= 1
