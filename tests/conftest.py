"""What holds for every test."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

# Started in the background by a script, pytest inherits SIGINT as ignored, and so would every process that a test
# starts and interrupts. A handler is not inherited: they begin with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real browser without a window. Where none is installed its tests are skipped, unless ORCH_BROWSER=required."""
    paths = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in paths:
        message = "no chromium, or no chromedriver: make browser installs them"
        if os.environ.get("ORCH_BROWSER") == "required":
            pytest.fail(message)
        pytest.skip(message)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(paths[1]))
    driver.set_page_load_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make matrix` ask for what takes minutes."""
    parser.addoption("--long", action="store_true", help="also run the tests marked long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out unless they are asked for."""
    if not config.getoption("--long"):
        left = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)
