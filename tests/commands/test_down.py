"""`orch down`: what is not up cannot be ended, and what is up is ended by `test_up`."""

from __future__ import annotations

import pytest

from orch.gang import emulate_ray


def test_with_nothing_up_it_says_so(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate_ray, "kept", dict)
    assert orch("down").out == "no emulated cluster is up\n"
    assert orch("down", "--json").document == {"ended": []}
    named = orch("down", "some")
    assert (named.code, named.err) == (2, "'some' is not up; no emulated cluster is up [E735]\n")


def test_all_are_ended_or_the_one_that_is_named(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[str, str]] = []
    monkeypatch.setattr(emulate_ray, "kept", lambda: {"orch-00000a": "one", "orch-00000b": "two"})
    monkeypatch.setattr(emulate_ray, "end", lambda *which: ended.append(which))
    assert orch("down", "three").err == "'three' is not up; up: one, two [E735]\n"
    assert orch("down", "two").out == "two is down\n"
    assert orch("down", "orch-00000a").out == "one is down\n"
    assert orch("down").out == "one is down\ntwo is down\n"
    assert ended == [("orch-00000b", "two"), ("orch-00000a", "one"), ("orch-00000a", "one"), ("orch-00000b", "two")]
