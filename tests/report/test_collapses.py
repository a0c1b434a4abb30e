"""Runs that collapse, whole ones: told once while they go on, and by their reports."""

from __future__ import annotations

import json
from pathlib import Path

import orchestry
from orchestry.engine.run import resume
from orchestry.engine.session import Silent
from orchestry.report.document import results
from orchestry.report.facts import summary_text
from orchestry.report.headline import summary
from orchestry.report.live import Followed
from orchestry.report.page.content import page_data
from orchestry.report.page.entry import PageRun, entry
from orchestry.report.runs import Salvaged, read_experiments
from orchestry.store.collapse import glance
from orchestry.store.run import Run, load_run
from tests.report.made import config

FLAT = (
    "warning after update 5: in all of the last 5 updates the samples of each group earned the "
    "same (reward 0.030), so that nothing was learned; what helps: easier problems, a higher "
    "sampling.max_tokens (now 512), agents.ROLE.examples, or a stronger provider.model"
)
SAID = f"W{FLAT[1:]}."


class Heard(Silent):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.warnings += [text] if text.startswith("warning") else []


def alike(folder: Path, episodes: int, heard: Heard) -> Run:
    """A run that learns prompts of a model that always says the same."""
    script = folder / "script.jsonl"
    script.write_text(json.dumps({"agent": "*", "text": "yes"}) + "\n")
    learns = {"enabled": True, "every": 5, "propose": ["examples"]}
    fake = {"name": "fake", "fake": {"script": str(script)}}
    found = config(provider=fake, episodes=episodes, behaviors=learns, judge={"enabled": False})
    return orchestry.train(found, folder / "run", heard)


def test_a_search_whose_samples_all_tie_is_told_once_and_its_report_says_so(tmp_path: Path) -> None:
    run = alike(tmp_path, 20, before := Heard())
    assert (before.warnings, Salvaged(run.folder).collapses) == ([], [])
    resume(run.folder, {"episodes": 25}, then := Heard())
    assert then.warnings == [FLAT]
    resume(run.folder, {"episodes": 30}, after := Heard())
    assert after.warnings == []  # it still holds, and was said
    experiments = read_experiments([run.folder])
    (of_run,) = summary(experiments)  # which `report --json` has too
    assert SAID in of_run[1]
    assert "in all of the last 5 updates the samples" in results(experiments, [], "orchestry")
    assert SAID in summary_text(experiments, "orchestry")
    assert "in all of the last 5 updates the samples" in page_data(experiments)["index"]


def test_the_page_of_a_run_that_goes_on_says_the_same(tmp_path: Path) -> None:
    """Whose episodes are kept without their texts."""
    run = alike(tmp_path, 25, Heard())
    whole, followed = Salvaged(run.folder), Followed(run.folder)
    assert followed.glances == whole.glances
    assert entry(PageRun("run", followed, False))["collapses"] == whole.collapses == [SAID]
    (run.folder / "episodes.jsonl").write_bytes(b"")
    followed.refresh()
    assert followed.glances == {}


def test_a_glance_counts_what_samples_say(searched: Run) -> None:
    (record, *_) = load_run(searched.folder).episodes
    found, turns = glance(record), [turn for node in record.nodes for turn in node.turns]
    assert (found.reward, found.flat) == (record.mean_leaf_reward, False)
    for agent in {turn.agent for turn in turns}:
        mine = [turn.completion.output_tokens for turn in turns if turn.agent == agent]
        assert found.sums["length", agent] == (sum(mine), len(mine))
    (first, *others) = record.groups
    assert found.sums["variety", "writer"] == (3, 3)
    same = first.model_copy(update={"children": first.children[:1] * 2 + first.children[2:]})
    alike = record.model_copy(update={"groups": (same, *others)})
    assert glance(alike).sums["variety", "writer"] == (2, 3)
