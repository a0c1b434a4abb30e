"""The page of a run that goes on, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestry.report import serve
from orchestry.report.serve import Watched, serving
from orchestry.store.run import Run
from tests.report.browser import CHROMIUM, Tab, browser
from tests.report.made import copied
from tests.report.test_live import grown

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here"),
]
EPISODES = "document.querySelectorAll('#episodes [role=option]').length"
CHOSEN = "document.querySelector('#episodes [aria-selected=true]')?.dataset.episode"
STATE = "document.getElementById('now-state').innerText"
NODES = "document.querySelectorAll('[role=treeitem]').length"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "EVERY_S", 0.05)


def until(tab: Tab, code: str, wanted: Any) -> None:
    """Waits for an expression of the page, which may be loading."""
    end, found = time.monotonic() + 20, None
    while time.monotonic() < end:
        with suppress(RuntimeError):
            found = tab.eval(code)
        if found == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"{code} is {found}, not {wanted}")


def faults(tab: Tab) -> list[dict[str, Any]]:
    """What the browser complained about."""
    bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    return [event for event in tab.events if event["method"] in bad]


def opened(tab: Tab, address: str, width: int = 1400) -> None:
    tab.open("about:blank")
    size: dict[str, Any] = {"width": width, "height": 900, "deviceScaleFactor": 1}
    tab.call("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
    tab.open(address)


def test_episodes_appear_as_they_end_and_the_newest_is_opened(
    tab: Tab, searched: Run, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    grown(searched.folder, place, 0.1)
    with serving(Watched([place])) as address:
        opened(tab, address)
        assert tab.eval(STATE) == "cut off: its process was killed or crashed"
        assert "No episode of this run is finished." in tab.eval("document.body.innerText")
        tab.eval("follow(true)")
        shown = 0
        for share in (0.5, 0.8, 1.0):
            grown(searched.folder, place, share)
            shown = (place / "episodes.jsonl").read_bytes().count(b"\n")
            until(tab, EPISODES, shown)
            until(tab, CHOSEN, str(shown - 1) if shown else None)
            until(tab, f"{NODES} > 1", bool(shown))
        assert shown == 3
        until(tab, STATE, "done")
        figures = tab.eval("document.getElementById('run').innerText")
        assert f"{searched.summary.mean_reward:.3f}" in figures
        assert faults(tab) == []


def test_what_the_reader_does_is_left_alone(tab: Tab, searched: Run, tmp_path: Path) -> None:
    place = tmp_path / "run"
    grown(searched.folder, place, 0.7)
    with serving(Watched([place])) as address:
        opened(tab, address)
        before = tab.eval(EPISODES)
        assert 0 < before < 3
        tab.eval("document.querySelector('#episodes [role=option]').click()")
        until(tab, "location.hash.includes('episode=0')", True)
        tab.press("t")
        tab.eval("document.querySelector('#run details > summary').click()")
        node = tab.eval("document.activeElement.dataset.node")
        grown(searched.folder, place, 1.0)
        until(tab, EPISODES, 3)
        assert tab.eval(CHOSEN) == "0"
        assert tab.eval("document.activeElement.dataset.node") == node
        assert tab.eval("document.querySelector('#run details').open")
        assert tab.eval("document.querySelector('#run details table').rows.length") > 1
        tab.press("f")
        until(tab, CHOSEN, "2")
        assert tab.eval("document.getElementById('follow').ariaPressed") == "true"
        tab.press("k")
        until(tab, CHOSEN, "1")
        assert tab.eval("document.getElementById('follow').ariaPressed") == "false"
        tab.eval("document.querySelector('.chart').focus()")
        tab.eval("hear({runs: [{run: 0, now: RUNS[0].now, entry: {}, from: 3, rows: []}]})")
        assert tab.eval("document.activeElement.className") == "chart"
        assert faults(tab) == []


def test_runs_side_by_side_and_a_new_evaluation(
    tab: Tab, searched: Run, called: Run, tmp_path: Path
) -> None:
    places = [copied(run.folder, tmp_path / name) for name, run in (("a", searched), ("b", called))]
    with serving(Watched(places)) as address:
        opened(tab, address)
        tab.press("]")
        until(tab, EPISODES, 4)
        copied(searched.folder, places[0] / "evaluations" / "dev")
        until(tab, "RUNS.length", 3)
        until(tab, EPISODES, 4)  # the address after # keeps the chosen run
        assert faults(tab) == []


def test_a_server_that_ended_is_told(tab: Tab, searched: Run) -> None:
    with serving(Watched([searched.folder])) as address:
        opened(tab, address)
        until(tab, f"{NODES} > 1", True)
    said = "document.getElementById('connection').innerText"
    until(tab, f"{said}.length > 0", True)
    assert tab.eval(EPISODES) == 3


def test_a_phone_shows_it_without_scrolling_sideways(tab: Tab, searched: Run) -> None:
    with serving(Watched([searched.folder])) as address:
        opened(tab, address, width=390)
        assert tab.eval("document.documentElement.scrollWidth") <= 390
