"""The report as a reader meets it: in a real browser, without a network, the answer in the first screen."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlparse

import pytest

from orch.report import data
from orch.report.page import answer


def requested(browser) -> set[str]:
    """Return the kinds of addresses that the browser asked for since the last look."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return {urlparse(url).scheme for url in urls}


@pytest.mark.slow
def test_a_report_opens_in_a_real_browser_and_asks_no_network(browser, reported) -> None:
    browser.get_log("performance"), browser.get_log("browser")  # what earlier pages left
    browser.get(f"file://{reported.page}")
    assert browser.title == "made-up - orch"
    assert requested(browser) <= {"file", "data"}
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    pictures = browser.find_elements("tag name", "img")
    assert len(pictures) == 8
    for picture in pictures:
        assert browser.execute_script("return arguments[0].complete && arguments[0].naturalWidth > 300", picture)
    first = browser.find_element("id", "answer")
    assert first.text == "merged is 2.00 [1.95, 2.03] times as fast as plain."
    for seen in (first, pictures[0]):
        box = browser.execute_script("const b = arguments[0].getBoundingClientRect(); return [b.top, b.bottom]", seen)
        assert 0 <= box[0] < box[1] <= 900
    # Nothing is wider than the window.
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    links = [link.get_attribute("href") for link in browser.find_elements("css selector", ".files a")]
    assert len(links) == 16 and all(link.startswith(("data:text/csv", "data:image/png")) for link in links)
    fair = browser.find_element("id", "fairness").text
    assert "run by orch's own engine" in fair and "balanced shuffle" in fair


def test_the_answer_says_what_can_be_told_and_what_not(measured, tmp_path: Path) -> None:
    text, also = answer(data.subject(tmp_path / "runs", measured()))
    assert text == "merged is 2.00 [1.95, 2.03] times as fast as plain"
    assert also[0] == "not distinguishable from plain: small"
    assert also[-1].startswith("ceiling: with communication free ")


def test_a_lossy_winner_is_not_sold_as_exact(measured, tmp_path: Path) -> None:
    times = {"plain": (0.2, 0.21, 0.2, 0.22), "merged": (0.1, 0.11, 0.1, 0.11), "small": (0.05, 0.052, 0.05, 0.054)}
    text, also = answer(data.subject(tmp_path / "runs", measured(times=times)))
    assert text.startswith("small is 4.0")
    assert also[0].startswith("it is lossy, so judge it by time to target as well; of the exact stacks: merged (")


def test_nothing_gained_is_said(measured, simulated, tmp_path: Path) -> None:
    same = dict.fromkeys(("plain", "merged", "small"), (0.1, 0.11, 0.1, 0.12))
    about = data.subject(tmp_path / "runs", measured(times=same | {"small": (0.2, 0.21, 0.2, 0.23)}))
    text, also = answer(about)
    assert text == "No stack is faster than plain, as far as this run can tell"
    assert also[1].startswith("slower: small (0.5")
    alone = data.subject(tmp_path / "runs", simulated("stacks={plain: [wfbp]}"))
    assert answer(alone)[0] == "One stack, plain: nothing to compare"


def test_a_run_cut_short_says_so_first(measured, tmp_path: Path) -> None:
    run = measured()
    run.directory.write_json("results.json", dict(run.directory.results) | {"complete": False})
    about = data.subject(tmp_path / "runs", type(run)(run.directory))
    assert answer(about)[1][0].startswith("the run did not finish")
