"""Asks: every shipped task, a user's own one, what was learned, caps, kills and searches."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve, validate
from orchestry.core.errors import BudgetExceeded, ConfigError
from orchestry.engine.ask import Answer, ask
from orchestry.engine.run import resume
from orchestry.store.journal import Answered, Reserved
from orchestry.store.run import Run, load_run
from orchestry.task.given import UNSCORED
from orchestry.task.registry import bundled, load_task
from tests.backends.letters import TASK, write_task
from tests.backends.letters import config as letters
from tests.cli.support import Reply, chat, served
from tests.engine.planted import Bench, good, plant
from tests.engine.test_learning import PLUS, model
from tests.engine.test_learning import config as learning
from tests.engine.test_run import PRICED, config, kill_at

TEXT = "The heating broke in January. A neighbour lent us two stoves, so we slept in the kitchen."
ENOUGH: dict[str, str] = {
    "arxiv": "",
    "code_collaboration": "aux_goal, aux_signature, entry_point, example, main_goal, signature",
    "code_review": "entry_point, example, signature",
    "documentation": "",
    "house_style": "",
    "research": "",
    "story": "beats, characters, object, place",
    "tldr": "",
}
"""By task: the fields without which a text can't be played."""
SLOGAN = """
from pathlib import Path
from orchestry import AgentSpec, TeamTask, read_problems


class Slogan(TeamTask):
    name = "slogan"
    agents = (AgentSpec(role="drafter"), AgentSpec(role="editor"))

    def problems(self, split):
        return read_problems(Path(__file__).with_name("problems.jsonl"), split)

    async def evaluate(self, state, tools):
        words = (state.last("editor") or state.last("drafter")).split()
        keywords = state.problem.data["keywords"]
        return self.score(quality=sum(word in words for word in keywords) / len(keywords))

    def gold(self, problem):
        return dict.fromkeys(("drafter", "editor"), " ".join(problem.data["keywords"]))
"""
LETTERS = {"id": "given-1", "prompt": "say something"}
LINE = {"id": "tea", "prompt": "A slogan for tea", "data": {"keywords": ["set", "map"]}}


def of(task: str, folder: Path, *sets: str) -> Run:
    """A run of one episode on the fake provider."""
    few = ("provider.name=fake", "episodes=1", "search.k_samples=1", "search.beam_width=1")
    return orchestry.train(resolve([], [f"task={task}", *few, *sets]), folder / "run", None)


SHIPPED = sorted(path.parent.name for path in bundled("tasks").glob("*/task.py"))


def sent(run: Run) -> int:
    return sum(isinstance(event, Reserved) for event in run.events)


@pytest.mark.parametrize("task", SHIPPED)
@pytest.mark.slow
def test_every_shipped_task_takes_a_problem_of_its_kind(task: str, tmp_path: Path) -> None:
    run = of(task, tmp_path)
    line = load_task(task).problems("test")[0].model_dump(mode="json")
    found = ask(run, line)
    assert found.reward is not None
    assert 0.0 <= found.reward <= 1.0
    assert {role for role, _ in found.turns} == roles(run)
    assert found.run.folder.parent == run.folder / "asks"


def roles(run: Run) -> set[str]:
    return {turn.agent for node in run.episodes[0].nodes for turn in node.turns}


@pytest.mark.parametrize("task", ENOUGH)
def test_a_text_is_enough_or_the_missing_fields_are_named(task: str, tmp_path: Path) -> None:
    run, text = of(task, tmp_path), "def add(a, b):\n    return a + b\n"
    text = text if task == "documentation" else TEXT
    if not ENOUGH[task]:
        assert ask(run, text).text
        return
    with pytest.raises(ConfigError, match=f"does not fit task {task}") as caught:
        ask(run, text)
    said = str(caught.value)
    named = said.partition("its data lack ")[2].partition(":")[0].split(", ")
    assert sorted(named) == ENOUGH[task].split(", ")
    example = json.loads(said.partition("such as ")[2].rpartition(" (from")[0])
    assert {*example["data"]} == {*named}
    assert not (run.folder / "asks").exists()


def test_a_text_that_is_no_module_has_nothing_to_document(tmp_path: Path) -> None:
    run = of("documentation", tmp_path)
    for text in (TEXT, "LIMIT = 3"):
        with pytest.raises(ConfigError, match="no Python module with a public function or class"):
            ask(run, text)


def test_a_users_own_task_is_scored_where_its_field_is_given(tmp_path: Path) -> None:
    (tmp_path / "tasks" / "slogan").mkdir(parents=True)
    (tmp_path / "tasks" / "slogan" / "task.py").write_text(SLOGAN)
    (tmp_path / "tasks" / "slogan" / "problems.jsonl").write_text(json.dumps(LINE))
    run = of("slogan", tmp_path, f"task_path=[{tmp_path / 'tasks'}]")
    plain = ask(run, "A slogan for a lamp")
    assert plain.reward is None
    assert plain.run.episodes[0].best_node.score.tags == (UNSCORED,)
    whole = ask(run, {"prompt": "A slogan for a lamp", "data": {"keywords": ["run", "key"]}})
    assert whole.reward is not None
    assert str(plain) == plain.text == plain.turns[-1][1]


@pytest.mark.slow
def test_an_ask_plays_what_the_run_has_learned(tmp_path: Path) -> None:
    with model() as (server, where):
        run = orchestry.train(learning(*where), tmp_path / "run")
        before = len(server.bodies)
        found = run.ask("words on something else", observer=None)
        assert isinstance(found, Answer)
        prompts = [body["messages"][0]["content"] for body in server.bodies[before:]]
        assert len(prompts) == 3, "one pass: each agent once, no judge"
        assert sum(PLUS in prompt for prompt in prompts) == 1
        assert found.update == 4
        asked = server.bodies[before]["messages"][1]["content"]
        assert "words on something else" in asked
        untrained = run.ask("words on something else", update=0, observer=None)
        new = [body["messages"][0]["content"] for body in server.bodies[before + 3 :]]
        assert not any(PLUS in prompt for prompt in new)
        assert untrained.run.folder != found.run.folder
        searched = run.ask("words on something else", search=True, observer=None)
        assert len(searched.run.episodes[0].nodes) > 4
        assert searched.reward == max(n.score.total for n in searched.run.episodes[0].leaves())


def test_the_same_ask_is_answered_once(tmp_path: Path) -> None:
    run = orchestry.train(config(*PRICED), tmp_path / "run")
    first, again = ask(run, "words on tea"), ask(run, "words on tea")
    assert (again.text, again.run.folder) == (first.text, first.run.folder)
    assert sent(again.run) == sent(first.run) == 3
    other = ask(run, "words on tea", seed=7)
    assert other.text != first.text
    assert other.run.folder != first.run.folder
    assert load_run(run.folder).summary == run.summary, "the run itself stays as it is"


def test_an_ask_never_spends_over_its_cap_and_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    run = orchestry.train(config(*PRICED, "cache.enabled=false"), tmp_path / "run")
    cost = ask(run, "words on tea").run.summary.cost_usd
    with pytest.raises(BudgetExceeded, match=r"no answer yet.*larger --budget goes on") as caught:
        ask(run, "words on ink", budget_usd=0.0035)
    (stopped,) = [
        load_run(path) for path in (run.folder / "asks").iterdir() if str(path) in str(caught.value)
    ]
    assert 0 < stopped.summary.cost_usd <= 0.0035
    paid = sum(isinstance(event, Answered) for event in stopped.events)
    found = ask(run, "words on ink", budget_usd=1.0)
    assert found.run.folder == stopped.folder
    assert sent(found.run) == sent(stopped) + 3 - paid
    assert 0 < cost < 1


@pytest.mark.slow
def test_a_killed_ask_is_gone_on_with(tmp_path: Path) -> None:
    orchestry.train(config("provider.fake.latency_s=0.3", "episodes=1"), tmp_path / "run")
    whole = ask(tmp_path / "run", "words on tea", seed=1)
    folder = next((tmp_path / "run" / "asks").iterdir())
    moved = folder.rename(tmp_path / "whole")
    kill_at(b'"answered"', folder, "ask", str(tmp_path / "run"), "words on tea", "--seed", "1")
    assert not load_run(folder).episodes
    resume(folder)
    cut = ask(tmp_path / "run", "words on tea", seed=1)
    assert (cut.text, cut.turns) == (whole.text, whole.turns)
    assert load_run(moved).rewards == load_run(folder).rewards


def test_a_search_without_a_reward_needs_a_judge(tmp_path: Path) -> None:
    run = of("code_review", tmp_path)
    fields = {"entry_point": "total", "signature": "def total(xs):", "example": [[[1, 2]], 3]}
    problem = {"prompt": "Return the sum of a list.", "data": fields}
    assert ask(run, problem).reward is None
    asks = [*(run.folder / "asks").iterdir()]
    with pytest.raises(ConfigError, match=r"lack tests, reference\).*no judge.*leave out --search"):
        ask(run, problem, search=True)
    assert [*(run.folder / "asks").iterdir()] == asks, "nothing is begun"


def test_a_judge_chooses_where_the_task_can_not(tmp_path: Path) -> None:
    task = plant(tmp_path / "tasks") / "planted" / "task.py"
    source = task.read_text().replace(
        "        worth =", "        state.problem.data['needed']\n        worth ="
    )
    needed = "prompt=f\"{split} {n}\", data={'needed': 1}"
    task.write_text(source.replace('prompt=f"{split} {n}"', needed))
    drawn, said = [f"worth {n} of it" for n in (3, 9, 1, 5)], count()
    judge = Bench(good)

    def answer(number: int, body: dict[str, Any]) -> Reply:
        if "response_format" in body:
            return judge.answer(number, body)
        return 200, chat(drawn[next(said) % len(drawn)])

    with served(answer) as url:
        run = orchestry.train(judged(url, tmp_path / "tasks"), tmp_path / "run")
        found = ask(run, "anything", search=True)
    assert found.text == drawn[1]
    assert found.reward is None


def judged(url: str, tasks: Path) -> RunConfig:
    raw = {
        "task": "planted",
        "task_path": [str(tasks)],
        "episodes": 1,
        "provider": {"name": "openai", "model": "m", "base_url": url},
        "judge": {"enabled": True, "quality": 1.0, "collaboration": 0.0, "efficiency": 0.0},
        "behaviors": {"enabled": False},
        "prices": {"m": {"input": 1.0, "output": 1.0}},
        "cache": {"enabled": False},
    }
    return validate(raw)


def test_wrong_inputs_are_named_before_anything_is_written(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    inputs: tuple[tuple[Any, str], ...] = (
        ("  ", "has no text"),
        ({"data": {}}, "has no text"),
        ({"prompt": "a", "tests": 1}, "not a problem \\(tests: Extra inputs"),
        ("my key is sk-ant-REDACTED", "looks like an API key: remove it"),
        ("half of \ud83d", "no valid Unicode"),
        (3, "the input is of type int: give a text, or a dict"),
        ({"prompt": "a", "data": {"b": {1, 2}}}, "can't be written as JSON .*set"),
        ({"prompt": "a", "data": {"b": json.loads("[" * 900 + "]" * 900)}}, "nest deeper than 64"),
    )
    for given, said in inputs:
        with pytest.raises(ConfigError, match=said):
            ask(run, given)
    assert not (run.folder / "asks").exists()
    with pytest.raises(ConfigError, match="update"):
        ask(run, "words", update=3)


def test_what_both_wrote_at_once_is_shown_under_their_names(tmp_path: Path) -> None:
    found = ask(of("tldr", tmp_path), TEXT)
    assert found.text.startswith("## concise\n\n")
    assert "\n\n## detailed\n\n" in found.text
    assert [role for role, _ in found.turns] == ["concise", "detailed"]


def test_a_task_hands_over_what_it_puts_together(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    said = [
        {"agent": "helper", "text": "```python\ndef aux(n):\n    return n + 1\n```"},
        {"agent": "main", "text": "```python\ndef twice(n):\n    return aux(aux(n))\n```"},
    ]
    script.write_text("\n".join(map(json.dumps, said)))
    run = of("code_collaboration", tmp_path, f"provider.fake.script={script}")
    problem = {
        "prompt": "Add two.",
        "data": {
            "entry_point": "twice",
            "signature": "def twice(n):",
            "example": [[1], 3],
            "aux_signature": "def aux(n):",
            "aux_goal": "Add one.",
            "main_goal": "Use aux.",
        },
    }
    space: dict[str, Any] = {}
    exec(ask(run, problem).text, space)
    assert space["twice"](5) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_local_team_answers_with_its_adapters(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.backends.local.tiny import tiny_folder

    where = str(tiny_folder(tmp_path / "tiny"))
    run = orchestry.train(letters(where, write_task(tmp_path / "tasks", TASK)), tmp_path / "run")
    found, began = ask(run, LETTERS), ask(run, LETTERS, update=0)
    assert [role for role, _ in found.turns] == ["left", "right"]
    assert (found.update, began.update) == (2, 0)
    assert found.text != began.text, "the adapters answer"
    assert found.reward is not None
    assert ask(run, LETTERS).text == found.text
    searched = ask(run, LETTERS, search=True).run.episodes[0]
    assert len(list(searched.leaves())) == 4, "a group, the best of which is shown"
    assert searched.reward == max(leaf.score.total for leaf in searched.leaves())
