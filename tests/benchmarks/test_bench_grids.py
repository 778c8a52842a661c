"""The benchmark of grids: every stack of a grid's recipe is run, and a bar that is missed is said."""

import json

import pytest

from benchmarks import bench_grids


def test_a_grid_is_run_whole_and_held_against_its_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_grids, "BAR_S", 600.0)
    assert bench_grids.main(["schemoe", "--json"]) == 0
    (figure,) = json.loads(capsys.readouterr().out)["figures"]
    assert (figure["name"], figure["layers"], len(figure["stacks"])) == ("schemoe layers", 675, 7)
    assert 1.0 < figure["speedup"][0] < figure["speedup"][2] < figure["speedup"][4]
    missed = bench_grids.Figure("g", 1, ("a",), 601.0, 1.0, "a over b", (1.0,) * 5)
    monkeypatch.setattr(bench_grids, "measured", lambda *_: missed)
    assert bench_grids.main(["schemoe"]) == 1
    assert "601.0 s (CPU 1.0 s), bar 600 s  MISSED" in capsys.readouterr().out
