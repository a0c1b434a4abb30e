"""The page in a real browser, opened from disk and walked by keyboard."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.types import Completion
from orchestry.report import page
from orchestry.report.runs import read_experiments
from orchestry.store.run import Run, Store, load_run
from tests.report.browser import CHROMIUM, Tab, browser
from tests.report.made import config
from tests.report.test_collapses import SAID, Heard, alike
from tests.report.test_page import HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here"),
]
FOCUS = "document.activeElement"
NODE = f"{FOCUS}.dataset.node"
CHOSEN = "document.querySelector('#episodes [aria-selected=true]').dataset.episode"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def opened(tab: Tab, folder: Path, *runs: Run, width: int = 1400, **options: Any) -> Path:
    """Shows a page about the runs in a new document, and says where it lies."""
    path = page.write_page(read_experiments([run.folder for run in runs]), folder, **options)
    tab.open("about:blank")
    size: dict[str, Any] = {"width": width, "height": 900, "deviceScaleFactor": 1}
    tab.call("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
    tab.open(path.as_uri())
    return path


def test_it_opens_from_disk_without_an_error_or_a_request(
    tab: Tab, searched: Run, tmp_path: Path
) -> None:
    path = opened(tab, tmp_path, searched)
    asked = [e["params"]["request"]["url"] for e in tab.events if "requestWillBe" in e["method"]]
    assert asked == [path.as_uri()]
    bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [event for event in tab.events if event["method"] in bad] == []
    assert tab.eval("document.title") == "words: Orchestry"
    assert tab.eval("document.querySelectorAll('#episodes [role=option]').length") == 3
    assert f"{searched.summary.best_of_k:.3f}" in tab.eval("document.body.innerText")


def test_a_collapse_is_a_notice_above_the_run(tab: Tab, tmp_path: Path) -> None:
    opened(tab, tmp_path, alike(tmp_path, 25, Heard()))
    assert tab.eval("$('notices').textContent") == SAID


def test_the_keyboard_reaches_episodes_tree_and_samples(
    tab: Tab, searched: Run, tmp_path: Path
) -> None:
    opened(tab, tmp_path, searched)
    best = searched.best
    assert best is not None
    tab.press("Tab")
    assert tab.eval(f"{FOCUS}.className") == "skip"
    tab.press("Enter")
    assert tab.eval(f"{FOCUS}.id") == "browser"
    titles = tab.eval("[...document.querySelectorAll('h3')].map(e => e.textContent)")
    assert "Best of k" in titles, "a search's curve is of its best trajectories"
    assert tab.eval(CHOSEN) == str(best.episode)
    tab.press("t")
    assert tab.eval(NODE) == best.best
    tab.press("ArrowLeft")
    parent = best.node(best.best).parent
    assert tab.eval(NODE) == parent
    label = tab.eval(f"{FOCUS}.getAttribute('aria-label')")
    group = next(g for g in best.groups if parent in g.children)
    value = group.values[group.children.index(parent)]
    assert label.startswith(f"{group.agents[0]}, value {value:.3f} by ")
    assert "survived" in label
    shown = tab.eval("document.querySelectorAll('[role=treeitem]').length")
    tab.press("ArrowLeft")
    assert tab.eval(f"{FOCUS}.getAttribute('aria-expanded')") == "false"
    assert tab.eval("document.querySelectorAll('[role=treeitem]').length") < shown
    tab.press("*", "b")
    assert tab.eval("document.querySelectorAll('[role=treeitem]').length") == shown
    answer = best.node(best.best).turns[-1].completion.text
    texts = tab.eval("[...document.querySelectorAll('.move.last > .text')].map(e => e.innerText)")
    assert texts == [answer]
    tab.press("j")
    following = min(best.episode + 1, len(searched.episodes) - 1)
    assert tab.eval(CHOSEN) == str(following)
    assert f"episode={following}" in tab.eval("location.hash")


def _at_a_move(
    tab: Tab, folder: Path, run: Run, wanted: Callable[[Completion], bool]
) -> Completion:
    """Opens the page at the first node with such an answer."""
    episode, node, said = next(
        (record.episode, node.id, turn.completion)
        for record in run.episodes
        for node in record.nodes
        for turn in node.turns
        if wanted(turn.completion)
    )
    opened(tab, folder, run)
    tab.eval(f"location.hash = '#run=0&episode={episode}&node={node}'")
    return said


def test_a_move_shows_its_calls_and_their_results(tab: Tab, called: Run, tmp_path: Path) -> None:
    (step, *_) = _at_a_move(tab, tmp_path, called, lambda said: bool(said.steps)).steps
    summary = "[...document.querySelectorAll('.move.last details.saw > summary')]"
    (call, *_), (result, *_) = step.said.calls, step.results
    titles = tab.eval(f"{summary}.map(e => e.innerText)")
    assert f"called {call.name} {call.arguments}" in titles
    tab.eval(f"{summary}.filter(e => e.innerText.startsWith('called'))[0].click()")
    shown = tab.eval("document.querySelector('.move.last details.saw[open] pre').innerText")
    assert shown == result


def test_a_programs_move_shows_the_calls_that_it_leaves_to_the_program(
    tab: Tab, programmed: Run, tmp_path: Path
) -> None:
    (call, *_) = _at_a_move(tab, tmp_path, programmed, lambda said: bool(said.calls)).calls
    said = tab.eval("document.querySelector('.move.last').innerText")
    assert f"called {call.name} {call.arguments}" in said
    assert "an empty answer" not in said
    assert "Credit: none: each move was drawn once" in tab.eval(
        "document.getElementById('episode').innerText"
    )


def test_every_sample_of_the_tree_says_what_its_record_says(
    tab: Tab, searched: Run, tmp_path: Path
) -> None:
    opened(tab, tmp_path, searched)
    best = searched.best
    assert best is not None
    items = "[...document.querySelectorAll('[role=treeitem]')]"
    labels = dict(tab.eval(f"{items}.map(e => [e.dataset.node, e.getAttribute('aria-label')])"))
    assert labels.keys() == {node.id for node in best.nodes}
    way = {node.id for node in best.path(best.best)}
    for group in best.groups:
        for place, child in enumerate(group.children):
            found = re.match(
                r"(.+), value ([\d.]+) by .+, advantage ([+\u2212][\d.]+)", labels[child]
            )
            assert found is not None
            assert found[1] == " + ".join(group.agents)
            assert float(found[2]) == pytest.approx(group.values[place], abs=6e-4)
            advantage = float(found[3].replace("\u2212", "-"))
            assert advantage == pytest.approx(group.advantages[place], abs=6e-4)
            survived = best.node(child).survived
            assert ("survived" in labels[child], "pruned" in labels[child]) == (
                survived,
                not survived,
            )
            assert ("on the best path" in labels[child]) == (child in way)
            times = group.children.count(child)
            assert (f"{times} equal samples" in labels[child]) == (times > 1)


def test_the_learning_curve_is_read_by_keys_and_opens_an_episode(
    tab: Tab, searched: Run, tmp_path: Path
) -> None:
    opened(tab, tmp_path, searched)
    tab.eval("document.querySelector('.chart').focus()")
    tab.press("Home", "ArrowRight")
    said = tab.eval(f"{FOCUS}.getAttribute('aria-valuetext')")
    assert said.startswith(f"episode 1 \u00b7 reward {searched.episodes[1].mean_reward:.3f} ")
    tab.press("Enter")
    assert tab.eval(f"{FOCUS}.dataset.episode") == "1"


def test_keys_dialog_and_filter(tab: Tab, searched: Run, tmp_path: Path) -> None:
    opened(tab, tmp_path, searched)
    tab.press("?")
    assert tab.eval("document.getElementById('help').open")
    tab.press("Escape")
    assert not tab.eval("document.getElementById('help').open")
    problem = searched.episodes[-1].problem
    tab.press("/")
    tab.call("Input.insertText", text=problem)
    rows = "[...document.querySelectorAll('#episodes .problem')].map(e => e.textContent)"
    assert set(tab.eval(rows)) == {problem}
    tab.press("Escape")
    assert tab.eval(f"{FOCUS}.getAttribute('role')") == "option"


def test_episodes_are_sorted(tab: Tab, searched: Run, tmp_path: Path) -> None:
    opened(tab, tmp_path, searched)
    tab.eval("$('sort').value = 'worst'; $('sort').dispatchEvent(new Event('change'))")
    rows = "[...document.querySelectorAll('#episodes [role=option]')].map(e => e.dataset.episode)"
    by_reward = sorted(searched.episodes, key=lambda record: (record.reward, record.episode))
    assert tab.eval(rows) == [str(record.episode) for record in by_reward]


def test_what_a_model_wrote_is_text_and_shows_what_can_not_be_seen(
    tab: Tab, tmp_path: Path
) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"agent": "*", "text": HOSTILE}) + "\n")
    fake = {"name": "fake", "fake": {"script": str(script)}}
    opened(tab, tmp_path, orchestry.train(config(provider=fake, episodes=1), tmp_path / "run"))
    assert not [e for e in tab.events if e["method"] == "Page.javascriptDialogOpening"]
    assert tab.eval("document.images.length") == 0
    answer = tab.eval("document.querySelector('.move.last > .text').textContent")
    assert answer.startswith("</script><script>alert(1)</script><!-- <script>")
    assert "\u202e" not in answer
    assert "U+202Egnp {{style}} &lt; </ScRiPt ><img src=x onerror=alert(1)>\n\tend" in answer


def test_a_phone_shows_it_without_scrolling_sideways(
    tab: Tab, searched: Run, tmp_path: Path
) -> None:
    opened(tab, tmp_path, searched, width=390)
    assert tab.eval("document.documentElement.scrollWidth") <= 390


def test_a_tree_that_is_left_out_is_said_to_be(tab: Tab, searched: Run, tmp_path: Path) -> None:
    opened(tab, tmp_path, searched, cap=0)
    assert "The trees of 3 of 3 episodes are left out" in tab.eval("document.body.innerText")
    assert tab.eval("document.querySelectorAll('[role=treeitem]').length") == 0
    tab.press("t", "b", "w", "p", "d", "j")
    assert tab.eval(CHOSEN) == "1"
    assert not [e for e in tab.events if e["method"] == "Runtime.exceptionThrown"]


def test_a_run_without_an_episode_says_so(tab: Tab, folder: Path, tmp_path: Path) -> None:
    with Store(folder) as store:
        store.roll_back(0, at=1.0)
    (folder / "summary.json").unlink()
    opened(tab, tmp_path, load_run(folder))
    assert "No episode of this run is finished." in tab.eval("document.body.innerText")
    assert not [e for e in tab.events if e["method"] == "Runtime.exceptionThrown"]


def test_the_address_leads_back_to_a_sample(tab: Tab, searched: Run, tmp_path: Path) -> None:
    path = opened(tab, tmp_path, searched)
    tab.open("about:blank")
    tab.open(f"{path.as_uri()}#run=0&episode=2&node=0.0")
    assert tab.eval(CHOSEN) == "2"
    tab.press("t")
    assert tab.eval(NODE) == "0.0"


def test_several_runs_stand_side_by_side_and_are_switched(
    tab: Tab, searched: Run, tmp_path: Path
) -> None:
    other = orchestry.train(config(seed=1, episodes=2), tmp_path / "other")
    opened(tab, tmp_path, searched, other)
    names = "[...document.querySelectorAll('.choose')].map(e => e.textContent)"
    assert tab.eval(names) == ["run (seed 0)", "other (seed 1)"]
    tab.press("]")
    assert tab.eval("document.querySelectorAll('#episodes [role=option]').length") == 2
    assert (
        tab.eval("document.querySelector('.choose[aria-pressed=true]').textContent")
        == "other (seed 1)"
    )
    assert "run=1" in tab.eval("location.hash")
