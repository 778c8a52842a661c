"""A cluster by itself: by name, by path, and with the position of what is wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.recipe.clusters import load_cluster

TEXT = """\
nodes: 2
devices_per_node: 1
device: {kind: cpu, name: example}
links: {inter: {alpha: 50us, bandwidth: 100Mbit, source: example}}
"""


def test_by_name_and_by_path(tmp_path: Path) -> None:
    assert load_cluster("local-4").world_size == 4
    (tmp_path / "mine.yaml").write_text(TEXT, encoding="utf-8")
    found = load_cluster(str(tmp_path / "mine.yaml"))
    assert (found.name, found.node(0).egress_bytes_per_s) == ("mine", 12.5e6)


def test_what_is_wrong_is_said_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT + "unequal: {1: {speeed: 0.5}}\n", encoding="utf-8")
    with pytest.raises(OrchError, match=r"mine\.yaml:5:\d+: unknown key 'speeed' in unequal\.1; did you mean speed"):
        load_cluster(str(file))
    with pytest.raises(OrchError, match="did you mean local-4"):
        load_cluster("local4")
