"""Data by name: knobs, what each gives, faults; none of it loads numpy."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from orch.errors import OrchError, Position
from orch.models.datasets import DATA, characters, choose_data
from orch.models.kinds import Classes, Image, Interface, NextToken, Tokens

WANTS = Interface(Tokens(256, 16), NextToken())


def test_names_are_looked_up_with_help() -> None:
    with pytest.raises(OrchError) as caught:
        choose_data("digits_8", where=Position("r.yaml", 4, 7))
    expected = "r.yaml:4:7: data 'digits_8' is not known; did you mean digits8? (all: orch list data) [E440]"
    assert str(caught.value) == expected


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(OrchError, match=r"unknown key 'data.imagesize'; did you mean image_size\?"):
        choose_data("digits8", {"imagesize": 32})
    with pytest.raises(OrchError, match=r"unknown key 'data.a'; its keys: none"):
        choose_data("pydoc_text", {"a": 1})
    with pytest.raises(OrchError, match=r"data.path: field required"):
        choose_data("tokens")


@pytest.mark.parametrize(
    ("name", "arguments", "reads"),
    [
        ("digits8", {}, Image(1, 8, 8)),
        ("mnist5k", {"image_size": 32, "channels": 3}, Image(3, 32, 32)),
        ("cifar100", {"path": "x"}, Image(3, 32, 32)),
        ("pydoc_text", {}, Tokens(len(characters()), 16)),
        ("synthetic", {}, WANTS.reads),
    ],
)
def test_what_data_gives(name: str, arguments: dict[str, object], reads: object) -> None:
    assert choose_data(name, arguments).gives(WANTS).reads == reads


@pytest.mark.parametrize("name", ["synthetic", "pydoc_text"])
def test_data_shaped_by_the_model_needs_one(name: str) -> None:
    with pytest.raises(OrchError, match=rf"data {name} takes its shapes from the model"):
        choose_data(name).load()
    assert choose_data("digits8").own_interface() == Interface(Image(1, 8, 8), Classes(10))


def test_a_missing_file_is_found_at_check_time(tmp_path: Path) -> None:
    with pytest.raises(OrchError, match=r"there is no file .*nothing.bin; data.path names a file of tokens"):
        choose_data("tokens", {"path": str(tmp_path / "nothing.bin")}).gives(WANTS)


def test_every_data_set_is_described_and_has_a_loader() -> None:
    for name, data in DATA.items():
        assert data.name == name
        assert data.summary
        assert data.source
        module, _, function = data.loader.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert all(field.description for field in data.knobs.model_fields.values())


def test_choosing_loads_no_numpy() -> None:
    code = (
        "import sys; from orch.models.catalogue import choose, check_pair; from orch.models.datasets import choose_data; "
        "check_pair(choose(use='char-transformer'), choose_data('pydoc_text')); choose(use='resnet152').profile(); "
        "print([m for m in ('torch', 'numpy', 'transformers', 'sklearn') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
