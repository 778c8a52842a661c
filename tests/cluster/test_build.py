"""From schema to value: lines and tables, nodes that differ, and what is not loaded before a value is asked for."""

import subprocess
import sys

import pytest

from orch.cluster import ClusterSpec, Span, load
from orch.cluster.build import build
from orch.errors import OrchError

GIVEN = {"nodes": 3, "devices_per_node": 1, "device": {"kind": "cpu", "name": "x"}}


def test_a_mapping_and_its_validated_form_make_the_same_cluster():
    linked = GIVEN | {"links": {"inter": {"alpha": "1ms", "bandwidth": "1Gbit", "source": "made up"}}}
    made = build(ClusterSpec.model_validate(linked), "here")
    assert made == load(linked, "here")
    assert (made.name, made.world) == ("here", Span(3, 3, 1))


def test_validating_loads_no_cost_model():
    code = "import sys, orch.cluster.spec; print(sorted(m for m in sys.modules if m.startswith('orch.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["orch.cluster", "orch.cluster.spec", "orch.cluster.spec_nodes", "orch.units"])


def test_a_name_that_is_not_there_is_an_attribute_error():
    import orch.cluster

    with pytest.raises(AttributeError, match="has no attribute 'Clutser'"):
        _ = orch.cluster.Clutser


def test_labels_of_unequal_nodes_stand_over_those_of_the_cluster() -> None:
    assert load(GIVEN).labels == ()
    labelled = load(GIVEN | {"labels": {"kind": "new"}, "unequal": {1: {"labels": {"kind": "old", "rack": "b"}}}})
    assert labelled.labels == ({"kind": "new"}, {"kind": "old", "rack": "b"}, {"kind": "new"})
    only = load(GIVEN | {"unequal": {2: {"labels": {"rack": "b"}}}})
    assert only.labels == ({}, {}, {"rack": "b"})
    assert only.unequal == {}  # a label is no link
    with pytest.raises(OrchError, match=r"labels\.kind"):
        load(GIVEN | {"labels": {"kind": "a b"}})
