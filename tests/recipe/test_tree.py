"""Trees of placed values."""

from __future__ import annotations

import pytest

from orch.recipe.source import Origin, read_text
from orch.recipe.tree import Node, dotted, kind

TREE = read_text("a: {b: [1, {c: x}]}\nd: {}\ne: []\nf:\n", Origin("r.yaml"))


def test_a_path_leads_to_a_node_or_nowhere() -> None:
    found = TREE.find(("a", "b", "1", "c"))
    assert found is not None
    assert found.value == "x"
    assert TREE.find(("a", "b", "2")) is None
    assert TREE.find(("a", "b", "-1")) is None
    assert TREE.find(("a", "x", "y")) is None


def test_the_deepest_node_on_the_way() -> None:
    node, depth = TREE.nearest(("a", "b", "9", "z"))
    assert (node.plain(), depth) == ([1, {"c": "x"}], 2)


def test_a_size_counts_every_value() -> None:
    assert TREE.size == 9


@pytest.mark.parametrize(
    ("path", "words"),
    [(("a",), "a mapping"), (("d",), "an empty mapping"), (("e",), "an empty list"), (("f",), "nothing"),
     (("a", "b"), "a list"), (("a", "b", "0"), "1"), (("a", "b", "1", "c"), "'x'")],
)  # fmt: skip
def test_what_a_node_is_in_words(path: tuple[str, ...], words: str) -> None:
    node = TREE.find(path)
    assert isinstance(node, Node)
    assert kind(node) == words


def test_a_path_is_shown_as_it_is_typed() -> None:
    assert dotted(("stacks", "v1.5", "mg-wfbp+acp-sgd")) == 'stacks."v1.5".mg-wfbp+acp-sgd'
