"""Runs with a judge: whom it asks, what people's ratings change, and how such a run stops."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError
from orchestry.core.types import ROOT, Completion, Request, Siblings, Trajectory, Turn
from orchestry.engine.plan import Plan
from orchestry.engine.run import prepare, resume
from orchestry.engine.session import Silent
from orchestry.store.journal import Answered, Lost, Opened, Rated, Released, Reserved, read
from orchestry.store.run import Run, Store
from tests.engine.test_changes import Notes
from tests.engine.test_learning import LEARN
from tests.engine.test_run import BASE, PRICED
from tests.toys import Scripted

JUDGED = (*BASE, *PRICED, "judge.enabled=true", "behaviors.enabled=false")
KEYS = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}


def config(*sets: str) -> RunConfig:
    return resolve([], [*JUDGED, *sets])


def judge_calls(run: Run) -> int:
    return sum(row.calls for row in run.summary.usage if row.purpose == "judge")


def test_the_embedded_model_does_not_judge_unless_asked_to() -> None:
    plan = prepare(resolve([], ["provider.name=embedded"]), environ={})
    assert plan.config.judge.enabled is False
    assert plan.config.behaviors.enabled is False
    assert any("ratings of a small embedded model are noise" in n for n in plan.backend.notes)
    asked = prepare(resolve([], ["provider.name=embedded", "judge.enabled=true"]), environ={})
    assert asked.config.judge.enabled is True
    assert not any("ratings" in note for note in asked.backend.notes)


def test_claude_judges_and_learns_by_default() -> None:
    plan = prepare(resolve([], ["provider.name=anthropic"]), environ=KEYS)
    assert plan.config.judge.enabled is True
    assert plan.config.behaviors.enabled is True
    assert plan.config.credit.share == 0.1
    assert plan.config.judge.temperature is None


def test_a_judge_without_a_name_is_the_runs_own_provider() -> None:
    sets = ["provider.name=openai", "provider.model=a", "provider.base_url=http://127.0.0.1:9/v1"]
    prices = ["prices.a.input=1", "prices.a.output=1", "prices.b.input=1", "prices.b.output=1"]
    plan = prepare(resolve([], [*sets, *prices, "judge.provider.model=b"]), environ={})
    judge = plan.config.judge.provider
    assert judge is not None
    assert (judge.name, judge.model, judge.base_url) == ("openai", "b", "http://127.0.0.1:9/v1")
    assert plan.config.judge.temperature == 0.0


def test_the_judges_address_and_files_stay_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.jsonl").write_text('{"agent": "*", "text": "x"}\n')
    fake = ("judge.provider.name=fake", "judge.provider.fake.script=s.jsonl")
    script = prepare(config(*fake)).config.judge.provider
    assert script is not None
    assert script.fake.script == tmp_path / "s.jsonl"
    environ = {**KEYS, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    named = ("judge.provider.name=openai", "judge.provider.model=fake-1")
    asked = prepare(config(*named), environ=environ).config.judge.provider
    assert asked is not None
    assert asked.base_url == "http://127.0.0.1:9/v1"


def test_a_temperature_that_claude_as_a_judge_would_not_read_is_refused() -> None:
    sets = ("judge.provider.name=anthropic", "judge.temperature=0.5")
    with pytest.raises(ConfigError, match="Claude takes no temperature"):
        prepare(config(*sets), environ=KEYS)


def test_nobody_is_asked_where_nothing_is_pruned(tmp_path: Path) -> None:
    chains = orchestry.train(config("search.strategy=best_of_n"), tmp_path / "chains")
    assert judge_calls(chains) == 0
    always = ("search.strategy=best_of_n", "judge.when=always")
    assert judge_calls(orchestry.train(config(*always), tmp_path / "always")) > 0
    assert judge_calls(orchestry.train(config(), tmp_path / "beam")) > 0


def test_a_judge_can_be_asked_in_every_nth_episode_only(tmp_path: Path) -> None:
    """Which ones depends on their numbers alone, so a run in two parts equals a whole one."""
    sets = ("judge.when=always", "judge.every=3")
    whole = orchestry.train(config(*sets), tmp_path / "whole")
    judged = [bool(episode.judgements) for episode in whole.episodes]
    assert judged == [True, False, False, True, False, False]
    for episode in (whole.episodes[1], whole.episodes[2]):
        assert {node.judged for node in episode.nodes} == {None}
        assert {group.source for group in episode.groups} <= {"leaf", "task"}
    part = orchestry.train(config(*sets, "episodes=2"), tmp_path / "part")
    assert resume(part.folder, {"episodes": 6}).episodes == whole.episodes


def test_a_judge_whose_calls_can_never_fit_ends_no_run(tmp_path: Path) -> None:
    dear = ("judge.provider.name=fake", "judge.provider.model=wise", "budget.usd=1")
    prices = ("prices.wise.input=100000", "prices.wise.output=100000")
    heard = Notes()
    run = orchestry.train(config(*dear, *prices), tmp_path / "run", observer=heard)
    assert (run.summary.stopped, run.summary.episodes) == ("done", 6)
    assert judge_calls(run) == 0
    assert 0 < run.summary.cost_usd < 1
    assert {node.judged for episode in run.episodes for node in episode.nodes} == {None}
    assert any("judge's answer" in text and "more than is left" in text for text in heard.said)


async def test_the_judge_reads_the_tasks_rubric_unless_the_config_has_one() -> None:
    for task in ("story", "research", "tldr", "arxiv", "documentation", "code_collaboration"):
        base = ("task=" + task, "judge.enabled=true", "behaviors.enabled=false")
        plan = prepare(resolve([], [*BASE, *base, "task_path=[]"]))
        assert len(plan.task.rubric) > 100
        assert plan.task.rubric in await shown(plan)
        own = prepare(resolve([], [*BASE, *base, "task_path=[]", "judge.rubric=Be brief."]))
        asked = await shown(own)
        assert "What good work is here:\nBe brief." in asked
        assert plan.task.rubric not in asked
    bare = await shown(prepare(config()))
    assert "What good work is here" not in bare


async def shown(plan: Plan) -> str:
    """What the run's judge is asked about two first moves."""
    asked = list[str]()

    def answer(request: Request) -> str:
        asked.append(request.messages[-1].content)
        return "{}"

    judge, task = plan.judge(Scripted(answer), when="always"), plan.task
    root = Trajectory(ROOT, plan.problem(0), 0, task.reset(plan.problem(0), 0))
    agents = task.to_act(root.state)
    children = []
    for index in range(2):
        turns = [
            Turn(agent=agent, messages=(), completion=Completion(text=f"{index}", model="m"))
            for agent in agents
        ]
        children.append(root.extend(index, root.state, turns))
    await judge.values(Siblings(root, agents, tuple(children), frozenset()))
    return asked[0]


def rate_all(run: Run) -> None:
    """A person who thinks the opposite of the judge."""
    with Store(run.folder) as store:
        for record in run.episodes:
            for node in record.nodes:
                if node.judged is not None:
                    rating = 0.0 if node.judged > 0.5 else 1.0
                    event = Rated(episode=record.episode, node=node.id, rating=rating, at=0.0)
                    store.journal.append(event)


def test_a_resume_corrects_the_judge_and_plays_a_lost_episode_as_it_was(tmp_path: Path) -> None:
    sets = ("judge.when=always", "judge.weight=1.0")
    run = orchestry.train(config(*sets), tmp_path / "run")
    before, answered = run.episodes, calls(run)
    rate_all(run)
    path = run.folder / "episodes.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[3:]))
    found = resume(run.folder)
    assert found.episodes == before
    assert calls(found) == answered, "what was paid was paid again"
    opened = [event for event in found.events if isinstance(event, Opened)]
    assert opened[0].calibration == (1.0, 0.0)
    assert opened[1].calibration[0] < 0.9


def calls(run: Run) -> int:
    return sum(isinstance(event, Answered) for event in read(run.folder / "journal.jsonl"))


class Impatient(Silent):
    """Presses Ctrl-C some time after a note that begins so, or after the start."""

    def __init__(self, after_s: float, note: str = "") -> None:
        self.after_s, self.begins = after_s, note

    def started(self, folder: Path, plan: Any, done: int) -> None:
        if not self.begins:
            self.press()

    def note(self, text: str) -> None:
        if self.begins and text.startswith(self.begins):
            self.press()

    def press(self) -> None:
        threading.Timer(self.after_s, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize("after_s", [0.3, 0.9])
@pytest.mark.parametrize("note", ["", "update 1"])
@pytest.mark.slow
def test_ctrl_c_leaves_no_call_behind(tmp_path: Path, after_s: float, note: str) -> None:
    slow = ("provider.fake.latency_s=0.15", "provider.fake.latency_sigma=0.7")
    sets = [*LEARN, *PRICED, *slow, "provider.name=fake", "judge.enabled=true"]
    run = orchestry.train(resolve([], sets), tmp_path / "run", Impatient(after_s, note))
    assert run.summary.stopped == "interrupted"
    events = list(read(run.folder / "journal.jsonl"))
    sent = {event.call for event in events if isinstance(event, Reserved)}
    ended = {e.call for e in events if isinstance(e, Answered | Released | Lost)}
    assert sent <= ended
    assert events[-1].kind == "stopped"
