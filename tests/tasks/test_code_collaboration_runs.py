"""Whole runs of code collaboration: at once, in order, over two turns, judged, and on a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.engine.estimate import estimate
from orchestry.engine.run import resume
from orchestry.engine.run import train as run_train
from orchestry.engine.session import Silent
from orchestry.store.journal import Answered, Reserved, read
from orchestry.store.run import Run
from orchestry.task.datasets import split_of

HELPERS = ("def aux(n):\n    return n ** 3", "def aux(n):\n    return n", "I can't.")
MAINS = (
    "def {name}(numbers):\n    return sum(aux(n) for n in numbers)",
    "def {name}(numbers):\n    return 0",
    "def {name}(numbers) return aux",
)
BASE = ("task=code_collaboration", "provider.name=fake", "episodes=3", "search.k_samples=3")
PRICED = ("prices.fake-1.input=1", "prices.fake-1.output=5")


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A fake model that knows cubes, and asks to be told better from turn 2 on."""
    bank = tmp_path / "bank.jsonl"
    lines = [{"agent": "helper", "text": text} for text in HELPERS]
    lines += [{"agent": "main", "text": text.format(name="sum_of_cubes")} for text in MAINS]
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    problems = Path(__file__).parents[2] / "tasks" / "code_collaboration" / "problems.jsonl"
    rows = [json.loads(line) for line in problems.read_text().splitlines()]
    bank.write_text(json.dumps(next(row for row in rows if row["id"] == "sum_of_cubes")))
    return f"provider.fake.script={path}"


def config(script: str, *sets: str) -> RunConfig:
    bank = Path(script.partition("=")[2]).with_name("bank.jsonl")
    return resolve([], [*BASE, *PRICED, script, f"options.path={bank}", *sets])


def prompts(run: Run, agent: str) -> list[str]:
    """What the agent was shown, over all nodes of all episodes."""
    return [
        turn.messages[-1].content
        for record in run.episodes
        for node in record.nodes
        for turn in node.turns
        if turn.agent == agent
    ]


@pytest.mark.parametrize("acting", ["joint", "sequential"])
def test_a_run_of_two_turns(tmp_path: Path, script: str, acting: str) -> None:
    sets = ("options.turns=2", f"options.acting={acting}", "behaviors.enabled=false")
    run = orchestry.train(config(script, *sets), tmp_path / "run")
    assert run.summary.stopped == "done"
    assert run.summary.best_reward == 1.0
    assert run.summary.tags["cooperates"] >= 1
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(row.get("tag/cooperates", 0) for row in rows) == run.summary.tags["cooperates"]
    assert any(tag.startswith("scheme_") for tag in run.summary.tags)
    helper, main = prompts(run, "helper"), prompts(run, "main")
    assert any("Result of both: " in text for text in helper)
    assert not any("sum(aux(n)" in text for text in helper)
    assert any("return n ** 3" in text for text in main) is (acting == "sequential")
    assert any("Code taken from main:\n" in node.score.feedback for node in run.episodes[0].nodes)


def test_a_resume_tells_the_agents_what_they_were_told(tmp_path: Path, script: str) -> None:
    """A committed episode that is lost is played again from the journal: no call, no difference."""
    sets = ("options.turns=2", "behaviors.enabled=false", "credit.share=0.5")
    run = orchestry.train(config(script, *sets), tmp_path / "run")
    before, calls = run.episodes, answers(run)
    path = run.folder / "episodes.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    again = resume(run.folder)
    assert again.episodes == before
    assert answers(again) == calls


def answers(run: Run) -> int:
    return sum(isinstance(event, Answered) for event in read(run.folder / "journal.jsonl"))


def test_the_judge_is_off_and_where_on_is_paid_through_the_ledger(
    tmp_path: Path, script: str
) -> None:
    quiet = orchestry.train(config(script), tmp_path / "quiet")
    assert not any(row.purpose == "judge" for row in quiet.summary.usage)
    judged = ("judge.enabled=true", "judge.provider.name=fake", "judge.when=always")
    run = orchestry.train(config(script, *judged), tmp_path / "judged")
    paid = sum(row.usd for row in run.summary.usage if row.purpose == "judge")
    assert paid > 0.0
    assert run.summary.cost_by_use["judge"] == pytest.approx(paid)
    spent = sum(event.completion.usd for event in run.events if isinstance(event, Answered))
    assert run.summary.cost_usd == pytest.approx(spent + run.summary.lost_usd)
    nodes = [node for record in run.episodes for node in record.nodes]
    assert any(node.judged is not None for node in nodes)


@pytest.mark.slow
def test_the_dry_run_bounds_what_agents_are_told(tmp_path: Path, script: str) -> None:
    """Feedback lengthens the prompts of turn 2, and no run may cost more than the maximum."""
    sets = ("options.turns=2", "search.strategy=single", "retry.attempts=1", "credit.share=0")
    chosen = config(script, *sets, "behaviors.enabled=false")
    top = estimate(chosen).cost_usd.max
    run = orchestry.train(chosen, tmp_path / "run")
    assert top is not None
    reserved = [event.usd for event in run.events if isinstance(event, Reserved)]
    assert run.summary.cost_usd <= sum(reserved) <= top


def test_a_run_on_humaneval(tmp_path: Path) -> None:
    """From rows to a summary: two problems, one of which the fake team solves together."""
    path = Path(__file__).parents[1] / "fixtures" / "humaneval" / "humaneval.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    script = tmp_path / "script.jsonl"
    mains = [f"{row['prompt']}    x = aux\n{row['canonical_solution']}" for row in rows]
    said = [("helper", "def aux(*args):\n    return args"), *(("main", main) for main in mains)]
    lines = (json.dumps({"agent": agent, "text": f"```\n{text}\n```"}) for agent, text in said)
    script.write_text("\n".join(lines))
    sets = (f"provider.fake.script={script}", "options.bank=humaneval", f"options.path={path}")
    run = orchestry.train(resolve([], [*BASE, *PRICED, *sets, "behaviors.enabled=false"]), tmp_path)
    assert (run.summary.stopped, run.summary.episodes) == ("done", 3)
    assert run.summary.tags["solved"] >= 1
    assert "scheme_none" in run.summary.tags


def test_a_reference_that_fails_is_named(
    tmp_path: Path,
) -> None:
    path = Path(__file__).parents[1] / "fixtures" / "humaneval" / "humaneval.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    train = [row for row in rows if split_of(row["task_id"].replace("/", "_")) == "train"]
    train[0]["canonical_solution"] = "    return object()\n"
    bank = tmp_path / "rows.jsonl"
    bank.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = ["options.bank=humaneval", f"options.path={bank}", "behaviors.enabled=false"]
    notes: list[str] = []

    class Heard(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    run_train(resolve([], [*BASE, *PRICED, *sets]), tmp_path / "run", Heard())
    (named,) = [note for note in notes if "own solution fails" in note]
    assert named.startswith(f"1 of {len(train)} problems")
    assert train[0]["task_id"].replace("/", "_") in named


@pytest.mark.slow
def test_it_runs_on_the_embedded_model(tmp_path: Path) -> None:
    sets = ("task=code_collaboration", "provider.name=embedded", "episodes=1", "options.turns=2")
    small = ("search.k_samples=2", "sampling.max_tokens=60")
    run = orchestry.train(resolve([], [*sets, *small]), tmp_path / "run")
    assert run.summary.stopped == "done"
    assert run.summary.episodes == 1
    scores = [node.score.parts for record in run.episodes for node in record.nodes if node.parent]
    assert all({part.name for part in found} >= {"tests", "cooperation"} for found in scores)
