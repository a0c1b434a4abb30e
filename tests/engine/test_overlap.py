"""Independent work side by side: what comes of a run does not depend on when answers arrive."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.backends.library import read_library
from orchestry.engine.run import resume
from orchestry.report.page.entry import PageRun, entry
from orchestry.report.runs import Salvaged
from orchestry.store.journal import Answered, Committed, Learned, read
from orchestry.store.run import Run
from tests.engine.test_learning import LEARN, PLUS, config, model, said
from tests.engine.test_run import PRICED, artefacts, kill_at

OVERLAP = "behaviors.overlap=true"
FAKE = (*PRICED, "provider.name=fake", "judge.enabled=true", "provider.fake.latency_s=0.005")


def drawn(seed: int, mean_s: float) -> Callable[[int], float]:
    """Latencies by number of arrival: many short ones, few long ones."""
    return lambda number: random.Random(f"{seed} {number}").expovariate(1.0 / mean_s)


def states(folder: Path) -> list[dict[str, Any]]:
    """Those of all updates, with the library in each."""
    return [event.state for event in read(folder / "journal.jsonl") if isinstance(event, Learned)]


def results(run: Run) -> tuple[Any, ...]:
    episodes = (run.folder / "episodes.jsonl").read_bytes()
    metrics = (run.folder / "metrics.jsonl").read_bytes()
    return (
        episodes,
        metrics,
        states(run.folder),
        entry(PageRun("", Salvaged(run.folder), False))["updates"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["false", "true"])
def test_results_do_not_depend_on_concurrency_or_latencies(tmp_path: Path, overlap: str) -> None:
    found = []
    for concurrency, episodes, mean_s in ((1, 3, 0.0005), (4, 2, 0.002), (32, 1, 0.004)):
        with model(drawn(concurrency, mean_s)) as (_, where):
            at_once = (f"search.concurrency={concurrency}", f"search.episodes_in_flight={episodes}")
            sets = (f"behaviors.overlap={overlap}", *at_once, *where)
            found.append(results(orchestry.train(config(*sets), tmp_path / f"at-{concurrency}")))
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_what_an_overlapping_update_accepts_is_used_one_block_later(tmp_path: Path) -> None:
    with model() as (_, where):
        run = orchestry.train(config(OVERLAP, *where), tmp_path / "run")
    library = read_library(run.folder / "behaviors" / "library.yaml")
    (learned,) = [b for b in library.behaviors if b.status == "accepted"]
    assert learned.text == PLUS
    assert learned.evidence is not None
    first = 3 * (learned.evidence.update + 1)  # of the block after the one beside its race
    assert first < 12
    for episode in run.episodes:
        assert said(episode, learned.agent, PLUS) == (episode.episode >= first)
    assert len(states(run.folder)) == 4, "the last block is learned from too"
    shown = entry(PageRun("", Salvaged(run.folder), False))["updates"]
    assert [one["after"] for one in shown] == [6, 9, 12, 12]


@pytest.mark.slow
def test_lost_episodes_are_played_again_with_the_library_that_they_had(tmp_path: Path) -> None:
    with model() as (server, where):
        run = orchestry.train(config(OVERLAP, *where), tmp_path / "run")
        whole, calls = artefacts(run.folder), len(server.bodies)
        path = run.folder / "episodes.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
        resume(run.folder)
        assert artefacts(run.folder) == whole
        assert len(server.bodies) == calls


@pytest.mark.slow
def test_updates_race_while_the_next_block_is_played(tmp_path: Path) -> None:
    run = orchestry.train(config(*FAKE, OVERLAP), tmp_path / "run")
    seen, between = 0, set[str]()
    for event in run.events:
        seen += isinstance(event, Committed)
        if isinstance(event, Answered) and 3 <= seen < 6:
            between.add(event.purpose)
    assert {"act", "trial"} <= between


@pytest.mark.parametrize(
    "mark", [b'"purpose":"trial"', b'"purpose":"distil"', b'"committed","episode":4', b'"learned"']
)
@pytest.mark.slow
def test_an_overlapping_run_that_was_killed_goes_on_as_if_it_had_not_been(
    tmp_path: Path, mark: bytes
) -> None:
    whole = orchestry.train(config(*FAKE, OVERLAP), tmp_path / "whole")
    folder = tmp_path / "killed"
    sets = [word for item in (*LEARN, *FAKE, OVERLAP) for word in ("--set", item)]
    kill_at(mark, folder, "run", "--run-dir", str(folder), *sets)
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)
    assert states(folder) == states(whole.folder)
    events = list(read(folder / "journal.jsonl"))
    keys = [event.key for event in events if isinstance(event, Answered)]
    assert len(set(keys)) == len(keys), "an answer was paid twice"


@pytest.mark.slow
def test_a_budget_that_ends_in_an_overlapping_run_can_be_raised(tmp_path: Path) -> None:
    whole = orchestry.train(config(*FAKE, OVERLAP), tmp_path / "whole")
    half = whole.summary.cost_usd / 2
    run = orchestry.train(config(*FAKE, OVERLAP, f"budget.usd={half}"), tmp_path / "capped")
    assert run.summary.stopped == "budget"
    assert run.summary.cost_usd <= half
    done = resume(run.folder, {"budget": {"usd": 100.0}})
    assert done.rewards == whole.rewards
    assert states(done.folder) == states(whole.folder)
