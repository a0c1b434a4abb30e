"""Weights that answer a program of the user's own, and learn from every call."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiohttp")

import orchestry
from orchestry.backends.local.model import load_base
from orchestry.backends.local.trainer import Trainer
from orchestry.core.config import RunConfig, resolve
from orchestry.core.learning import LearnConfig
from orchestry.core.tools import ANY, ToolSpec
from orchestry.core.types import Member, Message, Request, Turn
from orchestry.store.journal import Learned
from orchestry.store.records import EpisodeRecord
from tests.backends.letters import turns
from tests.backends.local.tiny import TEMPLATE, tiny_folder
from tests.engine.test_changes import Notes

TASKS = Path(__file__).parents[2] / "fixtures" / "tasks"
GROUP, EVERY = 3, 2


@pytest.mark.slow
def test_weights_learn_from_every_call_of_a_program(model: str, tmp_path: Path) -> None:
    sets = ["backend=local", "task=chatter", f"task_path=[{TASKS}]", f"provider.model={model}"]
    sets += ["sampling.max_tokens=8", "episodes=4", f"learn.every={EVERY}", "learn.threads=1"]
    sets += [f"learn.group_size={GROUP}", "learn.device=cpu", "budget.usd=5"]
    one, other = (orchestry.train(resolve([], sets, {}), tmp_path / name) for name in "ab")
    learned = [event.state for event in one.events if isinstance(event, Learned)]
    assert len(learned) == 2
    assert 0 < learned[0]["samples"] <= EVERY * GROUP * 2
    drawn, again = ([t for e in run.episodes for t in turns(e)] for run in (one, other))
    assert len(drawn) == 4 * GROUP * 2
    assert [turn.completion for turn in drawn] == [turn.completion for turn in again]


def poster(model: str, *sets: str) -> RunConfig:
    given = ["backend=local", "task=poster", f"task_path=[{TASKS}]", f"provider.model={model}"]
    given += ["sampling.max_tokens=8", "learn.threads=1", "learn.every=1", "learn.group_size=2"]
    return resolve([], [*given, "learn.device=cpu", "budget.usd=5", *sets], {})


def test_each_call_of_a_history_that_changes_is_one_sample_with_its_own_prompt(
    model: str, tmp_path: Path
) -> None:
    run = orchestry.train(poster(model, "options.way=forks", "episodes=2"), tmp_path / "run")
    learned = [event.state for event in run.events if isinstance(event, Learned)]
    assert [state["samples"] for state in learned] == [2 * 5] * 2
    base = load_base(model, device="cpu")
    for drawn in (branch for one in run.episodes for branch in branches(one)):
        one, two, *_ = said = [turn.completion.text for turn in drawn]
        sent = [[*"x"], ["x", one, "y"], ["x", one, "z"]]
        sent += [["x", f"{one}!", "y", two, "w"], ["y", two, "v"]]
        assert [[m.content for m in turn.messages] for turn in drawn] == sent
        assert len(said) == 5
        for turn in drawn:
            tokens = turn.completion.tokens
            assert tokens is not None
            assert tokens.prompt_ids == base.render(turn.messages)


def branches(episode: EpisodeRecord) -> list[list[Turn]]:
    """The turns of each rollout."""
    ends = {node.id for node in episode.nodes} - {node.parent for node in episode.nodes}
    return [[turn for node in episode.path(end) for turn in node.turns] for end in sorted(ends)]


def test_messages_that_the_chat_template_refuses_are_refused_to_their_program(
    tmp_path: Path,
) -> None:
    """In one problem alone; the run goes on, and learns from what was drawn."""
    folder = tiny_folder(tmp_path / "tiny")
    twice = "loop.previtem is defined and loop.previtem.role == message.role"
    check = "{% if " + twice + " %}{{ raise_exception('roles must alternate') }}{% endif %}"
    start = "{% for message in messages %}"
    strict = TEMPLATE.replace(start, start + check)
    (folder / "chat_template.jinja").write_text(strict)
    user = {"role": "user", "content": "a"}
    body = json.dumps([["/chat/completions", {"messages": [user, user]}]])
    sets = (f"options.bodies={body}", 'options.only="3"', "episodes=4")
    noted = Notes()
    run = orchestry.train(poster(str(folder), *sets), tmp_path / "run", noted)
    told = [
        json.loads(node.score.feedback)
        for one in run.episodes
        for node in one.nodes
        if node.score.feedback
    ]
    statuses = Counter(tuple(status for status, _ in rollout) for rollout in told)
    assert statuses == {(200, 200): 6, (200, 400, 200): 2}
    why = [text for rollout in told for status, text in rollout if status == 400]
    assert all("can't write these messages and tools (roles must alternate)" in t for t in why)
    assert run.summary.refused_calls == 2
    (once,) = (line for line in noted.said if "its program told" in line)
    assert once.endswith(json.loads(why[0])["error"]["message"])
    learned = [event.state for event in run.events if isinstance(event, Learned)]
    assert len(learned) == 4
    assert sum(state["samples"] for state in learned) > 0


LETTERS = '''
from orchestry import AgentSpec, AgentTask, Problem


class Spelling(AgentTask):
    """A writer and an editor behind OpenAI's client; the reward is the share of the letter e."""

    name = "spelling"
    agents = (AgentSpec(role="writer"), AgentSpec(role="editor"))

    def problems(self, split):
        return [Problem(id=f"{split}-{n}", prompt=f"say {n}", split=split) for n in range(4)]

    def play(self, problem, team):
        from openai import OpenAI

        with OpenAI(base_url=team.url, api_key=team.key) as client:
            text = problem.prompt
            for role in ("writer", "editor"):
                asked = [{"role": "user", "content": text}]
                answer = client.chat.completions.create(model=role, messages=asked)
                text = answer.choices[0].message.content
        return self.score(quality=text.count("e") / max(1, len(text)))
'''


@pytest.mark.slow
def test_a_program_gets_better_by_its_weights_alone(model: str, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    (tmp_path / "tasks" / "spelling").mkdir(parents=True)
    (tmp_path / "tasks" / "spelling" / "task.py").write_text(LETTERS)
    sets = ["backend=local", "task=spelling", f"task_path=[{tmp_path / 'tasks'}]", "episodes=48"]
    sets += [f"provider.model={model}", "sampling.max_tokens=8", "learn.every=4", "budget.usd=5"]
    sets += ["learn.threads=1", "learn.learning_rate=0.03", "learn.group_size=8"]
    run = orchestry.train(resolve([], [*sets, "learn.device=cpu"], {}), tmp_path / "run")
    before, after = (
        [one.mean_leaf_reward for one in orchestry.evaluate(run, "test", update=which).episodes]
        for which in (0, None)
    )
    assert min(after) > max(before)


@pytest.mark.parametrize("must_call", ["add", ANY])
def test_an_answer_that_must_be_a_call_begins_as_one(model: str, must_call: str) -> None:
    """So even random weights call; what they were given is part of the prompt they learn from."""
    members = {"writer": Member("writer", "", model, 8)}
    settings = LearnConfig(device="cpu", threads=1)
    trainer = Trainer(members, settings, 1, 0, lambda text: None)
    specs = tuple(ToolSpec(name=one, parameters={}) for one in ("add", "mul"))
    asked = Request(
        agent="writer",
        model=model,
        messages=(Message(role="user", content="a"),),
        max_tokens=8,
        tools=specs,
        must_call=must_call,
    )
    ((answer,),) = trainer.draw([asked], 1)
    (call,) = answer.calls
    assert answer.tokens is not None
    shown = str(trainer.crews[0].base.tokenizer.decode([*answer.tokens.prompt_ids]))
    assert shown.endswith('{"name": "add", "arguments": ' if must_call == "add" else '{"name": "')
    assert ('"name": "mul"' in shown) == (must_call == ANY)
    assert call.id == "call_0"
