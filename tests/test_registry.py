"""Finding things by name: the search order, doubles, and techniques that are found before anything is imported."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from orch import registry
from orch.errors import OrchError, Position
from orch.technique import Technique

TECHNIQUE = """
from orch.technique import Slot, Technique
technique = Technique(name="{name}", slot=Slot.SCHEDULE, rewrite=lambda plan, context, config: plan,
                      source="none", lossless=True)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and an empty project that is the working directory; returns the folder of both."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "orch.toml").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def put(path: Path, text: str = "a: 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---- files


def test_nearer_places_hide_farther_ones(home: Path) -> None:
    beside = home / "beside"
    places = [
        home / "home" / ".config" / "orch" / "clusters" / "local-4.yaml",
        home / "project" / "clusters" / "local-4.yaml",
        beside / "clusters" / "local-4.yaml",
    ]
    assert registry.find_file("clusters", "local-4").parent == registry.shipped("clusters")
    for place in places:
        put(place)
        assert registry.find_file("clusters", "local-4", [beside]) == place
        assert registry.files("clusters", [beside])["local-4"] == place


def test_a_cluster_stands_beside_its_recipe_too(home: Path) -> None:
    path = put(home / "beside" / "mine.yml")
    assert registry.find_file("clusters", "mine", [home / "beside"]) == path


@pytest.mark.parametrize("second", ["clusters/mine.yml", "mine.yaml"])
def test_two_files_of_one_name_in_one_place(home: Path, second: str) -> None:
    put(home / "beside" / "clusters" / "mine.yaml")
    put(home / "beside" / second)
    with pytest.raises(
        OrchError, match=r"^r:1: 'mine' is the name of two files: .* and .*; rename one, or give the path \[E151\]$"
    ):
        registry.find_file("clusters", "mine", [home / "beside"], Position("r", 1))


def test_the_same_folder_twice_is_one_place(home: Path) -> None:
    path = put(home / "project" / "recipes" / "mine.yaml")
    assert registry.find_file("recipes", "mine", [home / "project" / "recipes"]) == path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quikstart", "there is no recipe named 'quikstart'; did you mean quickstart? [E150]"),
        ("QUICKSTART_", "there is no recipe named 'QUICKSTART_'; did you mean quickstart? [E150]"),
        ("zzz", "there is no recipe named 'zzz'; all: orch list recipes [E150]"),
        ("x" * 300, f"there is no recipe named '{'x' * 57}...'; all: orch list recipes [E150]"),
        ("../quickstart", "there is no recipe named '../quickstart'; did you mean quickstart? [E150]"),
        ("a\0b", r"there is no recipe named 'a\x00b'; all: orch list recipes [E150]"),
        ("", "there is no recipe named ''; all: orch list recipes [E150]"),
    ],
)
def test_a_name_that_is_nowhere(home: Path, name: str, message: str) -> None:
    with pytest.raises(OrchError) as caught:
        registry.find_file("recipes", name)
    assert str(caught.value) == message


def test_everything_that_ships_is_listed_sorted(home: Path) -> None:
    assert {"quickstart", "resnet50-v100", "gpt2-a100"} <= set(registry.files("recipes"))
    assert "local-4" in registry.files("clusters")
    assert list(registry.files("clusters")) == sorted(registry.files("clusters"))


# ---- the project


def test_the_nearest_project_file_counts(home: Path) -> None:
    below = home / "project" / "a" / "b"
    below.mkdir(parents=True)
    assert registry.project(below).root == home / "project"
    put(below / "pyproject.toml", "[project]\nname = 'x'\n")
    assert registry.project(below).root == home / "project"
    put(below / "pyproject.toml", "[tool.orch]\ntechniques = ['m.n']\n")
    assert (registry.project(below).root, registry.project(below).techniques) == (below, ("m.n",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("technique = ['a']", "unknown key 'technique'; did you mean techniques? [E152]"),
        ("techniques = 'a'", 'techniques is not a list of module names; write techniques = ["package.module"] [E152]'),
        (
            "techniques = ['a b']",
            'techniques is not a list of module names; write techniques = ["package.module"] [E152]',
        ),
        (
            "techniques = ['a..b']",
            'techniques is not a list of module names; write techniques = ["package.module"] [E152]',
        ),
        ("techniques = [", "not valid TOML: Invalid value (at end of document) [E152]"),
        ("techniques = ['nowhere_at_all']", "the listed module 'nowhere_at_all' is not found; looked below "),
    ],
)
def test_a_fault_in_the_project_file(home: Path, text: str, message: str) -> None:
    path = put(home / "project" / "orch.toml", text)
    with pytest.raises(OrchError) as caught:
        registry.techniques()
    assert str(caught.value).startswith(f"{path}: {message}")


# ---- techniques


def test_shipped_techniques_are_found_without_importing_them(home: Path) -> None:
    found = registry.techniques()
    assert {"wfbp", "mg-wfbp", "dear", "bucketed", "torch-ddp", "s-sgd"} <= set(found)
    assert found["mg-wfbp"].module == "techniques.schedules.mg_wfbp"
    assert not any(name.endswith("kernels") or name.startswith("_") for name in found)
    assert list(found) == sorted(found)


def test_a_technique_is_the_value_of_its_module(home: Path) -> None:
    technique = registry.technique("mg-wfbp")
    assert isinstance(technique, Technique)
    assert technique.name == "mg-wfbp"


def test_every_shipped_technique_loads_under_its_name(home: Path) -> None:
    for name in registry.techniques():
        assert registry.technique(name).name == name


def listed(home: Path, modules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / "project" / "orch.toml", f"techniques = {modules}\n")
    monkeypatch.setattr(sys, "path", [*sys.path])  # what looking up appends goes with the test


def test_a_listed_module_or_package_is_found_and_only_then_imported(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home / "project" / "orch_test_a" / "my_way.py", TECHNIQUE.format(name="my-way"))
    put(home / "project" / "orch_test_a" / "my_way_kernels.py", "raise RuntimeError('kernels are no technique')")
    put(home / "project" / "src" / "orch_test_b" / "other.py", TECHNIQUE.format(name="other"))
    listed(home, "['orch_test_a', 'orch_test_b.other']", monkeypatch)
    assert {"my-way", "other"} <= set(registry.techniques())
    assert "orch_test_a.my_way" not in sys.modules
    assert registry.technique("my-way").name == "my-way"
    assert registry.technique("other").name == "other"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("broken", "import orch_test_nothing_here", "technique 'broken' cannot be imported from .*broken.py: ModuleNotFoundError: No module"),
        ("exits", "raise SystemExit('a\\nb')", "technique 'exits' cannot be imported from .*exits.py: SystemExit: a b"),
        ("syntax", "def", "technique 'syntax' cannot be imported from .*syntax.py: SyntaxError"),
        ("nothing", "x = 1", "nothing.py has no value 'technique' that is a Technique; end the module with technique"),
        ("misnamed", TECHNIQUE.format(name="else"), "misnamed.py is found as 'misnamed', but its technique is named 'else'; name the module"),
    ],
)  # fmt: skip
def test_a_technique_that_cannot_be_loaded(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    put(home / "project" / "orch_test_faulty" / f"{name}.py", text)
    listed(home, f"['orch_test_faulty.{name}']", monkeypatch)
    sys.modules.pop("orch_test_faulty", None)
    with pytest.raises(OrchError, match=message) as caught:
        registry.technique(name, Position("r", 3, 5))
    assert str(caught.value).startswith("r:3:5: ")
    assert str(caught.value).endswith("[E221]")
    assert str(caught.value).isprintable()


def test_two_techniques_of_one_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / "project" / "orch_test_c" / "wfbp.py", TECHNIQUE.format(name="wfbp"))
    listed(home, "['orch_test_c']", monkeypatch)
    with pytest.raises(
        OrchError,
        match=r"^two techniques are named 'wfbp': techniques/schedules/wfbp.py and .*orch_test_c/wfbp.py; rename or remove one \[E222\]$",
    ):
        registry.technique("wfbp")
    assert registry.technique("mg-wfbp").name == "mg-wfbp"


def test_a_module_listed_twice_is_one_technique(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home / "project" / "orch_test_d" / "lonely.py", TECHNIQUE.format(name="lonely"))
    listed(home, "['orch_test_d', 'orch_test_d.lonely']", monkeypatch)
    assert registry.technique("lonely").name == "lonely"


def test_an_installed_package_offers_a_technique(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = home / "site"
    put(site / "orch_test_plugin.py", TECHNIQUE.format(name="plugged-in").replace("technique =", "mine ="))
    put(site / "plugin-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    put(site / "plugin-1.0.dist-info" / "entry_points.txt", "[orch.techniques]\nplugged-in = orch_test_plugin:mine\n")
    monkeypatch.syspath_prepend(str(site))
    place = registry.techniques()["plugged-in"]
    assert (place.module, place.declared_in) == ("orch_test_plugin", "the package plugin (orch_test_plugin:mine)")
    assert registry.technique("plugged-in").name == "plugged-in"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("mgwfbp", "did you mean mg-wfbp? (all: orch list techniques)"), ("TORCH_DDP", "did you mean torch-ddp? (all: orch list techniques)"),
     ("ddp", "did you mean torch-ddp? (all: orch list techniques)"), ("zzz", "all: orch list techniques")],
)  # fmt: skip
def test_an_unknown_technique(home: Path, name: str, hint: str) -> None:
    with pytest.raises(OrchError) as caught:
        registry.technique(name)
    assert str(caught.value) == f"technique '{name}' is not known; {hint} [E220]"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("orch.toml", b"techniques = " + b"[" * 5000 + b"]" * 5000, "not valid TOML: nested too deep"),
        ("orch.toml", b"x = " + b"9" * 5000, "not valid TOML"),
        ("orch.toml", b"# x\n" * 300_000, "is larger than 1 MiB; is this the right file?"),
        ("pyproject.toml", b"# [tool.orch]\ntool = 3\n", None),
        ("pyproject.toml", b"# [tool.orch]\n[tool]\norch = 3\n", None),
    ],
)
def test_a_project_file_of_any_kind_is_read_or_refused(
    tmp_path: Path, name: str, text: bytes, line: str | None
) -> None:
    (tmp_path / name).write_bytes(text)
    if line is None:
        assert registry.project(tmp_path).file is None
        return
    with pytest.raises(OrchError, match=re.escape(line)):
        registry.project(tmp_path)
