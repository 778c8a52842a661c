"""Gangs of these tests load torch only: nobody trains, and two dozen of them start from nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orch.gang import end_all, fork_server


@pytest.fixture(autouse=True, scope="package")
def quick_start() -> Iterator[None]:
    """Leave out of the preload what only a training needs, and leave no warm worker behind."""
    kept, fork_server.PRELOAD = fork_server.PRELOAD, ("torch",)
    end_all()
    yield
    end_all()
    fork_server.PRELOAD = kept
