"""What tests of emulation share: whether this machine can, and clusters that are gone after the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orch.cluster.node import Node
from orch.errors import OrchError
from orch.gang import emulate_leftovers
from orch.gang.emulate_net import Network, refuse


def refusal(nodes: list[Node] | None = None) -> OrchError | None:
    """Return why this machine cannot emulate; None where it can."""
    try:
        refuse(nodes or [Node(1e6, 1e6)])
    except OrchError as error:
        return error
    return None


can_emulate = pytest.mark.skipif(refusal() is not None, reason=f"{refusal()}")


@contextmanager
def network(nodes: list[Node]) -> Iterator[Network]:
    """Make a network owned by this process; nothing of it is left afterwards."""
    cluster = emulate_leftovers.claim({"owner": emulate_leftovers.identity_of(os.getpid())})
    try:
        yield Network(cluster, nodes)
    finally:
        emulate_leftovers.remove(emulate_leftovers.parts(cluster))
    assert emulate_leftovers.parts(cluster) == []
