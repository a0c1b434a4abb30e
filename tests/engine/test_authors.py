"""Who writes behaviours, of which kinds, and how examples reach an agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import orchestry
from orchestry.core.choices import UNWRITTEN, WITH_AUTHOR
from orchestry.core.config import resolve
from orchestry.core.errors import ProviderError
from orchestry.engine.run import prepare, resume
from orchestry.store import journal
from orchestry.task.registry import load_task
from tests.cli.support import served
from tests.engine.test_judged_runs import KEYS

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tasks"

WORDS = ("task=words", f"task_path=[{FIXTURES}]", "provider.name=fake", "behaviors.enabled=true")


def test_the_embedded_model_is_asked_for_no_rules_unless_the_user_says_so() -> None:
    embedded = [*WORDS, "provider.name=embedded"]
    plan = prepare(resolve([], embedded))
    assert plan.config.behaviors.propose == UNWRITTEN
    assert any("no model writes behaviours" in note for note in plan.backend.notes)
    assert prepare(plan.config).config == plan.config
    plan = prepare(resolve([], [*embedded, "behaviors.propose=[rules]"]))
    assert plan.config.behaviors.propose == ("rules",)
    claude = prepare(resolve([], [*embedded, "behaviors.provider.name=anthropic"]), environ=KEYS)
    assert claude.config.behaviors.propose == WITH_AUTHOR
    assert claude.backend.author.provider.name == "anthropic"
    assert claude.backend.bench.provider.name == "embedded"


def test_gold_and_feedback_race_without_a_model_that_writes(tmp_path: Path) -> None:
    task = ("task=tldr", "provider.name=fake", "behaviors.enabled=true", "episodes=5")
    kinds = ("behaviors.propose=[gold,feedback]", "behaviors.share=0.2", "judge.enabled=false")
    run = orchestry.train(resolve([], [*task, *kinds]), tmp_path / "run")
    assert not [row for row in run.summary.usage if row.purpose == "distil"]
    (learned,) = (event for event in run.events if isinstance(event, journal.Learned))
    found = learned.state["library"]["behaviors"]
    gold = [one for one in found if one["why"].startswith("gold of ")]
    assert {one["kind"] for one in gold} == {"example"}
    problems = {one.id: one for one in load_task("tldr").problems("train")}
    for one in gold:
        answers = load_task("tldr").gold(problems[one["why"].removeprefix("gold of ")])
        assert answers
        assert one["text"].endswith(answers[one["agent"]].strip())
    assert all("said of your work" in one["text"] for one in found if one not in gold)


def test_gold_that_raises_ends_no_run(tmp_path: Path) -> None:
    place = tmp_path / "tasks" / "spoilt"
    place.mkdir(parents=True)
    source = (FIXTURES / "words" / "task.py").read_text().replace('"words"', '"spoilt"')
    raises = "    def gold(self, problem):\n        raise KeyError('answer')\n\n    def "
    (place / "task.py").write_text(source.replace("    def ", raises, 1))
    given = ("task=spoilt", f"task_path=[{tmp_path / 'tasks'}]", "provider.name=fake", "episodes=5")
    kinds = ("behaviors.enabled=true", "behaviors.propose=[gold]", "behaviors.share=0.2")
    run = orchestry.train(resolve([], [*given, *kinds]), tmp_path / "run")
    assert run.summary.stopped == "done"


def test_a_model_of_its_own_writes_the_behaviours(tmp_path: Path) -> None:
    """Its calls are in the run's books, under its own name and price."""
    script = tmp_path / "author.jsonl"
    rule = {"why": "w", "text": "Say a."}
    script.write_text(json.dumps({"agent": "*", "text": json.dumps({"behaviors": [rule]})}) + "\n")
    author = (
        *("behaviors.provider.name=fake", "behaviors.provider.model=wise"),
        *(f"behaviors.provider.fake.script={script}", "behaviors.propose=[rules]"),
        *("prices.wise.input=2", "prices.wise.output=8", "behaviors.share=0.2"),
    )
    run = orchestry.train(resolve([], [*WORDS, *author, "episodes=5"]), tmp_path / "run")
    asked = [row for row in run.summary.usage if row.purpose == "distil"]
    assert asked
    for row in asked:
        assert row.usd == pytest.approx((2 * row.input_tokens + 8 * row.output_tokens) / 1e6)
    (learned,) = (event for event in run.events if isinstance(event, journal.Learned))
    assert "Say a." in [b["text"] for b in learned.state["library"]["behaviors"]]


def test_an_author_whose_calls_can_never_fit_ends_no_run(tmp_path: Path) -> None:
    author = (
        *("behaviors.provider.name=fake", "behaviors.provider.model=wise", "budget.usd=1"),
        *("behaviors.propose=[rules]", "behaviors.share=0.2", "episodes=5"),
        *("prices.fake-1.input=1", "prices.fake-1.output=5"),
        *("prices.wise.input=100000", "prices.wise.output=100000"),
    )
    run = orchestry.train(resolve([], [*WORDS, *author]), tmp_path / "run")
    assert (run.summary.stopped, run.summary.episodes, run.summary.updates) == ("done", 5, 1)
    assert not any(row.calls for row in run.summary.usage if row.purpose == "distil")
    assert 0 < run.summary.cost_usd < 1
    (learned,) = (event for event in run.events if isinstance(event, journal.Learned))
    assert learned.state["library"]["behaviors"] == []


@pytest.mark.slow
def test_a_wrong_author_is_put_right_on_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-wrong-one")
    missing = json.dumps({"error": {"message": "no such key"}}).encode()
    with served(lambda number, body: (401, missing)) as url:
        author = (
            *("behaviors.provider.name=openai", "behaviors.provider.model=wise"),
            *(f"behaviors.provider.base_url={url}/v1", "behaviors.propose=[rules]"),
            *("prices.wise.input=2", "prices.wise.output=8", "behaviors.share=0.2", "episodes=5"),
        )
        with pytest.raises(ProviderError, match="no such key"):
            orchestry.train(resolve([], [*WORDS, *author]), tmp_path / "run")
    script = tmp_path / "author.jsonl"
    script.write_text(json.dumps({"agent": "*", "text": "no JSON"}) + "\n")
    other = {"name": "fake", "model": None, "base_url": None, "fake": {"script": str(script)}}
    run = resume(tmp_path / "run", {"behaviors": {"provider": other}})
    assert run.summary.stopped == "done"
    assert run.summary.updates == 1


def test_an_agents_examples_are_earlier_turns_of_its_chat(tmp_path: Path) -> None:
    example = "{asked: what, answered: this}"
    own = (f"agents.writer.examples=[{example}]", "episodes=1", "behaviors.enabled=false")
    run = orchestry.train(resolve([], [*WORDS, *own]), tmp_path / "run")
    (episode,) = run.episodes
    turns = [turn for node in episode.nodes for turn in node.turns]
    shown = {turn.agent: [m.content for m in turn.messages if m.role != "system"] for turn in turns}
    assert shown["writer"][:2] == ["what", "this"]
    assert len(shown["writer"]) == 3
    assert all(len(said) == 1 for agent, said in shown.items() if agent != "writer")
