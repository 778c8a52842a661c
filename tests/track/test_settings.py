"""Where runs and index live: an argument beats the variable, the variable beats the default."""

from pathlib import Path

from orch.track import settings


def test_the_argument_wins_then_the_variable_then_the_default(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(settings.RUNS_VARIABLE, raising=False)
    assert settings.runs_root() == tmp_path / "runs"
    monkeypatch.setenv(settings.RUNS_VARIABLE, "elsewhere")
    assert settings.runs_root() == tmp_path / "elsewhere"
    assert settings.runs_root("/x") == Path("/x")


def test_the_index_is_a_file_under_the_runs_unless_another_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv(settings.STORE_VARIABLE, raising=False)
    own = settings.store_of(tmp_path)
    assert (own.local, own.uri) == (True, f"sqlite:///{tmp_path}/.index/mlflow.db")
    assert own.file == tmp_path / ".index" / "mlflow.db"
    monkeypatch.setenv(settings.STORE_VARIABLE, "http://host:5000")
    assert settings.store_of(tmp_path).uri == "http://host:5000"
    assert not settings.store_of(tmp_path).local
    assert (settings.store_of(tmp_path).file, settings.store_of(tmp_path).links) == (None, False)


def test_a_relative_database_is_meant_from_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    other = settings.store_of(tmp_path / "runs", "sqlite:///x.db")
    assert (other.uri, other.file, other.links) == (f"sqlite:///{tmp_path}/x.db", tmp_path / "x.db", True)
