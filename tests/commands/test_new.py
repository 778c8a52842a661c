"""`orch new`: what it writes works at once, is found by name, and never replaces anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orch.commands import new
from orch.errors import OrchError


def test_a_new_technique_is_found_and_its_test_passes(orch, project: Path) -> None:
    done = orch("new", "technique", "my-idea")
    assert done.out.splitlines()[0] == "wrote my_idea.py and test_my_idea.py"
    assert 'techniques = ["my_idea"]' in (project / "orch.toml").read_text(encoding="utf-8")
    assert orch("show", "my-idea", "--json").document["knobs"][0]["name"] == "tensors"
    assert "my-idea" in {entry["name"] for entry in orch("list", "techniques", "--json").document}
    assert orch("check", "mine", "stacks.mine=[my-idea]").code == 0
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_idea.py"],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout


def test_a_new_recipe_is_right_as_it_is(orch, project: Path) -> None:
    assert (
        orch("new", "recipe", "my-first").out == "wrote recipes/my-first.yaml; next: orch check recipes/my-first.yaml\n"
    )
    assert orch("check", "my-first", "--json").document["stacks"]["mine"] == {
        "techniques": ["mg-wfbp"],
        "lossless": True,
    }
    text = (project / "recipes" / "my-first.yaml").read_text(encoding="utf-8")
    fields = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert sum("#" in line for line in fields) >= 4


def test_a_new_paper_is_judged_as_it_is(orch, project: Path) -> None:
    done = orch("new", "paper", "my-paper")
    assert (
        done.out.splitlines()[0]
        == "wrote recipes/papers/my-paper.yaml, recipes/papers/my-paper/main.yaml and recipes/papers/my-paper/results.csv"
    )
    (found,) = orch("reproduce", "my-paper", "--json").document["papers"]
    assert [claim["id"] for claim in found["claims"]] == ["faster", "on-average", "accuracy"]
    assert found["claims"][2]["outcome"] == "not runnable here"
    assert found["judged"] == 2
    assert orch("plan", "recipes/papers/my-paper/main.yaml").code == 0
    assert orch("new", "paper", "my-paper").err == (
        "there is a paper named 'my-paper' already; see orch reproduce my-paper [E011]\n"
    )


def test_nothing_is_replaced(orch, project: Path) -> None:
    (project / "my_idea.py").write_text("mine\n", encoding="utf-8")
    done = orch("new", "technique", "my-idea")
    assert (done.code, done.err) == (2, "my_idea.py exists already; choose another name, or remove it first [E011]\n")
    assert (project / "my_idea.py").read_text(encoding="utf-8") == "mine\n"
    assert not (project / "test_my_idea.py").exists()
    assert (project / "orch.toml").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("technique", "My Idea"), "such as my-idea [E010]"),
        (("technique", "2fast"), "such as my-idea [E010]"),
        (("technique", "class"), "class.py would stand in the way of Python's own class; such as my-class [E010]"),
        (
            ("technique", "numpy"),
            "numpy.py would stand in the way of the installed module numpy; such as my-numpy [E010]",
        ),
        (("technique", "json"), "json.py would stand in the way of Python's own json; such as my-json [E010]"),
        (("technique", "mg-wfbp"), "there is a technique named 'mg-wfbp' already; see orch show mg-wfbp [E011]"),
        (("recipe", "mine"), "there is a recipe named 'mine' already; see orch show mine [E011]"),
        (("recipe", "../up"), "such as up [E010]"),
    ],
)
def test_a_bad_name_is_one_line(orch, arguments: tuple[str, ...], line: str) -> None:
    done = orch("new", *arguments)
    assert done.code == 2
    assert done.err.endswith(line + "\n")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 'techniques = ["b"]\n'),
        ("# mine\ntechniques = []\n", '# mine\ntechniques = ["b"]\n'),
        ('techniques = ["a"]\n', 'techniques = ["a", "b"]\n'),
        ('techniques = [\n    "a",\n]\n', 'techniques = [\n    "a", "b"]\n'),
    ],
)
def test_a_module_is_added_to_the_list(text: str, expected: str) -> None:
    assert new.with_module(text, "b", Path("orch.toml")) == expected


def test_a_module_goes_under_its_table_of_pyproject() -> None:
    text = '[project]\nname = "x"\n\n[tool.orch]\n\n[tool.other]\n'
    expected = '[project]\nname = "x"\n\n[tool.orch]\ntechniques = ["b"]\n\n[tool.other]\n'
    assert new.with_module(text, "b", Path("pyproject.toml")) == expected
    with pytest.raises(OrchError, match=r"no table \[tool.orch\]"):
        new.with_module("[project]\n", "b", Path("pyproject.toml"))


def test_inside_a_clone_it_goes_to_its_family(tmp_path: Path) -> None:
    code, test = new._in_clone(tmp_path, "sparse", "top-some")
    assert (code, test) == (
        tmp_path / "techniques" / "sparse" / "top_some.py",
        tmp_path / "tests" / "techniques" / "sparse" / "test_top_some.py",
    )
    assert (tmp_path / "techniques" / "sparse" / "__init__.py").is_file()
    assert "from techniques.sparse.top_some import" in test.read_text(encoding="utf-8")
