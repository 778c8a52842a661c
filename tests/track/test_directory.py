"""Run directories: unique at once, harmless names, copies that still read, nothing that leads out."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orch.track import directory, state
from orch.track.directory import Facts

ODD = ["李/梅", 'it\'s "x"', "a" * 300, "..", ".hidden", "x\ny", "dear+acp", "con:aux?*", " ", "", "A", "a", "\udcff"]


def test_names_become_distinct_harmless_folders():
    folders = [directory.slug(name) for name in ODD]
    assert len(set(folders)) == len(ODD)
    assert all(len(f.encode()) < 120 and "/" not in f and f not in (".", "..") and f[0] != "." for f in folders)
    assert directory.slug("dear+acp") == "dear+acp"


def test_stacks_that_differ_in_case_do_not_share_a_folder(tmp_path):
    run = directory.create(tmp_path, Facts("r", "measured", ("A", "a", "李/梅")))
    folders = run.stack_folders()
    assert list(folders) == ["A", "a", "李/梅"]
    assert len({str(path).casefold() for path in folders.values()}) == 3


def test_runs_that_begin_at_once_get_their_own_sortable_directories(tmp_path):
    code = (
        "import pathlib, sys\n"
        "from orch.track.directory import *\n"
        "for _ in range(40): print(create(pathlib.Path(sys.argv[1]), Facts('r', 'measured', ('a',))).id)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    made = [process.communicate()[0].split() for process in processes]
    assert len({run for ids in made for run in ids}) == 120
    assert [run.id for run in directory.find_all(tmp_path)] == sorted(run for ids in made for run in ids)
    assert all([run[:17] for run in ids] == sorted(run[:17] for run in ids) for ids in made)


def test_a_copy_elsewhere_reads_the_same(tmp_path):
    run = directory.create(tmp_path / "a", Facts("r/1", "measured", ("x", "y"), command=("orch", "run", "token=abc")))
    directory.write_recipe(run, {"lr": math.inf, "name": "on", "n": None, "api_key": "abc"}, {"lr": "r.yaml:1:2"})
    run.write_json("results.json", {"stacks": {"x": {"loss": math.nan}}})
    copy = directory.RunDirectory(shutil.copytree(run.path, tmp_path / "b" / run.id))
    assert directory.read_recipe(copy) == {"lr": math.inf, "name": "on", "n": None, "api_key": "[redacted]"}
    assert math.isnan(copy.results["stacks"]["x"]["loss"])
    assert copy.facts == run.facts
    assert copy.recipe_name == "r/1"
    assert copy.stack_folders()["y"] == copy.path / "stacks" / "y"
    assert "abc" not in "".join(p.read_text() for p in copy.path.rglob("*") if p.is_file())


def test_a_new_run_is_queued_and_ours(tmp_path):
    run = directory.create(tmp_path, Facts("r", "simulated", ("a",)))
    assert run.state.status == "queued"
    assert run.state.owner == state.Owner.here()


def test_damage_reads_as_empty(tmp_path):
    run = directory.create(tmp_path, Facts("r", "measured", ("a",)))
    for name in ("run.json", "state.json"):
        (run.path / name).write_bytes(b"\x00\xff{")
    (run.path / "recipe.yaml").write_text("a: [")
    assert (run.facts, run.state, run.results, directory.read_recipe(run)) == ({}, None, {}, {})
    assert (run.stack_folders(), run.recipe_name) == ({}, "r")
    assert [found.id for found in directory.find_all(tmp_path)] == [run.id]


def test_a_forged_stack_folder_cannot_lead_out(tmp_path):
    run = directory.create(tmp_path, Facts("r", "measured", ("a",)))
    directory.encoding.write_json(run.path / "run.json", {"stacks": {"a": "../../../etc"}})
    assert run.stack_folders()["a"].parent == run.path / "stacks"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "."])
def test_no_file_is_written_outside(tmp_path, name):
    run = directory.create(tmp_path, Facts("r", "measured", ("a",)))
    with pytest.raises(ValueError, match="not a file of a run"):
        run.write_json(name, {})


def test_the_way_to_the_runs_may_go_up_and_over_links(tmp_path, monkeypatch):
    (tmp_path / "deep" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "below")
    monkeypatch.chdir(tmp_path / "deep")
    for root in (Path("../runs"), tmp_path / "link" / ".." / "runs", Path(".")):
        run = directory.create(root, Facts("r", "measured", ("a",)))
        run.write_json("figures/x.json", {"a": 1})
        assert directory.encoding.read_json(root / "r" / run.id / "figures" / "x.json") == {"a": 1}


def test_other_things_in_the_root_are_not_runs(tmp_path):
    (tmp_path / "r" / "notes").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / ".index" / "20260101-000000-aaaa").mkdir(parents=True)
    assert list(directory.find_all(tmp_path)) == []
    assert list(directory.find_all(tmp_path / "absent")) == []


def test_logs_are_listed_driver_first_then_by_number(tmp_path):
    run = directory.create(tmp_path, Facts("r", "measured", ("a",)))
    (run.path / "logs").mkdir()
    for rank in (10, 2, None, 0):
        run.log(rank).write_text("")
    assert [path.stem for path in run.logs()] == ["driver", "rank0", "rank2", "rank10"]
