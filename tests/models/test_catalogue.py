"""What `model:` may say: names, own code, profiles; each fault one line at its place."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orch.errors import OrchError, Position
from orch.models import catalogue
from orch.models.catalogue import check_pair, choose
from orch.models.datasets import choose_data
from orch.models.profile import Profile
from orch.models.tables import PROFILES

HERE = Position("r.yaml", 2, 8)


def test_the_names_are_those_that_the_modules_describe() -> None:
    for family, members in catalogue.FAMILIES.items():
        found = importlib.import_module(f"orch.models.{family}").MODELS
        assert sorted(model.name for model in found) == sorted(members)
    assert len(set(catalogue.names())) == len(catalogue.names())


def test_every_model_is_described_profiled_and_its_builder_exists() -> None:
    for model in catalogue.models():
        assert model.summary
        assert model.source
        profile = model.profile(model.knobs())
        assert profile.numel == model.parameters > 0
        assert len(profile.ready_order) == len(profile.tensors) - len(profile.never_ready)
        assert model.name == "moe-layers" or not profile.never_ready  # its gates are not trained
        assert Profile.from_json(json.loads(json.dumps(profile.to_json()))) == profile
        if model.runs:
            module, _, function = model.builder.partition(":")
            assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use": "ResNet-50"}, "model 'ResNet-50' is not known; did you mean resnet50? (all: orch list models) [E420]"),
        ({"use": "gpt_2"}, "model 'gpt_2' is not known; did you mean gpt2? (all: orch list models) [E420]"),
        ({"use": "qqq"}, "model 'qqq' is not known; all: orch list models [E420]"),
        ({}, "model names nothing; give use, python or profile [E420]"),
        ({"use": "mlp", "arguments": {"width": 3}}, "unknown key 'model.width'; did you mean widths? [E423]"),
        ({"python": "nocolon"}, "'nocolon' names no function; write package.module:function [E424]"),
        ({"python": "a b:c"}, "'a b:c' names no function; write package.module:function [E424]"),
        (
            {"python": "no_such_module_x.y:f"},
            "there is no module 'no_such_module_x'; install it, or list no_such_module_x.y [E424]",
        ),
        (
            {"profile": "p.json", "arguments": {"seq_len": 3}},
            "unknown key 'model.seq_len': a profile has no knobs; remove it [E423]",
        ),
    ],
)
def test_a_fault_is_one_line_at_its_place(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OrchError) as caught:
        choose(**arguments, where=HERE)
    assert str(caught.value) == f"r.yaml:2:8: {message}"


def test_a_named_model_with_changed_knobs() -> None:
    chosen = choose(use="mlp", arguments={"widths": [8, 4]})
    assert [tensor.shape for tensor in chosen.profile().tensors][::2] == [(8, 64), (4, 8), (10, 4)]
    assert chosen.runs
    assert chosen.build(seed=0).head.weight.shape == (10, 4)  # type: ignore[union-attr]


def test_a_recipe_is_resolved() -> None:
    class Spec:
        use, python, profile = "mlp", None, None
        arguments: dict[str, Any] = {"widths": [3]}

    assert catalogue.resolve(Spec()).profile().numel == 65 * 3 + 4 * 10


def test_code_runs_only_if_installed_or_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stray_models.py").write_text("import torch\ndef make(width):\n    return torch.nn.Linear(64, width)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    message = "module 'stray_models' is neither installed nor listed"
    with pytest.raises(OrchError, match=message):
        choose(python="stray_models:make")
    assert "stray_models" not in sys.modules
    listed = choose(python="stray_models:make", arguments={"width": 5}, listed=["stray_models"])
    assert listed.build(seed=0).weight.shape == (5, 64)  # type: ignore[union-attr]
    assert choose(python="torch.nn:Linear").runs


def test_a_listed_module_is_found_in_the_project(tmp_path: Path) -> None:
    (tmp_path / "project_models.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(2, 3)\n")
    chosen = choose(python="project_models:make", listed=["project_models"], root=tmp_path)
    before = list(sys.path)
    try:
        assert chosen.build(seed=0).weight.shape == (3, 2)  # type: ignore[union-attr]
    finally:
        sys.path[:] = before
    with pytest.raises(OrchError, match="there is no module 'project_models'"):
        choose(python="project_models:make", listed=["project_models"])


def test_profiles_come_from_json_or_tables(tmp_path: Path) -> None:
    kept = choose(use="vgg16").profile()
    (tmp_path / "p.json").write_text(json.dumps(kept.to_json()))
    assert choose(profile="p.json", beside=tmp_path).profile() == kept
    chosen = choose(profile=str(PROFILES / "vgg16"))
    assert chosen.profile() == kept
    assert not chosen.runs
    with pytest.raises(OrchError, match="has only a profile"):
        chosen.build(seed=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "it holds no object"),
        (b"{", "is no profile"),
        (b"\xff\xfe", "is no profile"),
        (b'{"name": "x"}', "profile 'x': not a profile: 'modules'"),
    ],
)
def test_a_file_that_is_no_profile(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(OrchError, match=message):
        choose(profile="p.json", beside=tmp_path)
    with pytest.raises(OrchError, match="there is no profile"):
        choose(profile="q.json", beside=tmp_path)


def test_pairs_are_checked_by_name() -> None:
    check_pair(choose(use="resnet-digits"), choose_data("digits8"))
    check_pair(choose(use="bert-base"), choose_data("pydoc_text"))
    check_pair(choose(use="resnet50"), choose_data("synthetic"))
    check_pair(
        choose(use="resnet50", arguments={"image_size": 32}), choose_data("digits8", {"image_size": 32, "channels": 3})
    )
    with pytest.raises(OrchError, match=r"r.yaml:2:8: model gpt2 reads sequences of 1024 tokens .* data digits8 gives"):
        check_pair(choose(use="gpt2"), choose_data("digits8"), HERE)


def test_the_catalogue_loads_no_torch() -> None:
    code = (
        "import sys; from orch.models import catalogue; [m.parameters for m in catalogue.models()]; "
        "print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
