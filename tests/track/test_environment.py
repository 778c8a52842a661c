"""What a run depended on: the user's project with its diff, packages, hardware, the variables that matter."""

import os
import subprocess

import pytest

import orch
from orch.track import environment


def git(project, *arguments):
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", str(project), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("lr = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_a_clean_project_has_a_commit_and_no_diff(project):
    facts, diff = environment.project_git(project)
    assert len(facts["commit"]) == 40
    assert (facts["branch"], facts["dirty"], diff) == ("main", False, "")


def test_changes_are_kept_with_secrets_removed(project):
    (project / "train.py").write_text('lr = 2\npassword = "hunter2"\n')
    (project / "new.py").write_text("")
    git(project, "remote", "add", "origin", "https://me:pw@host/x.git")
    facts, diff = environment.project_git(project)
    assert facts["dirty"] is True
    assert facts["untracked"] == ["new.py"]
    assert "+lr = 2" in diff
    assert "hunter2" not in diff
    assert "pw@" not in facts["remote"]


def test_a_huge_diff_is_cut_and_says_so(project, monkeypatch):
    monkeypatch.setattr(environment, "DIFF_LIMIT_BYTES", 50)
    (project / "train.py").write_text("x = 1\n" * 100)
    facts, diff = environment.project_git(project)
    assert facts["diff_truncated_from_bytes"] > 50
    assert len(diff) == 50


def test_outside_a_repository_there_is_nothing_to_say(tmp_path):
    assert environment.project_git(tmp_path) == ({}, "")


def test_the_machine_and_the_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NCCL_TOKEN", "abc")
    monkeypatch.setenv("UNRELATED", "x")
    facts, _ = environment.collect(tmp_path)
    assert facts["orch"] == orch.__version__
    assert facts["hardware"]["cores"] == os.cpu_count()
    assert facts["hardware"]["memory_bytes"] > 2**28
    assert any(line.startswith("pydantic==") for line in facts["packages"])
    assert facts["variables"]["OMP_NUM_THREADS"] == "3"
    assert facts["variables"]["NCCL_TOKEN"] == "[redacted]"
    assert "UNRELATED" not in facts["variables"]
