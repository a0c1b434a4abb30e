"""Who says what before acting, who sees it, and how right an inference is found."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry import BaseTask
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError
from orchestry.core.thoughts import kind_of
from orchestry.core.types import Limits, Request, Tools, Tree
from orchestry.engine.games import seat_policy
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.task.check import check_task
from orchestry.task.guard import count_stages
from orchestry.task.setup import playable, set_up
from orchestry.task.thinking import MOST_WORDS, accuracy, check_bonus, thoughtful
from tests.toys import Duo, Scripted, Words, team

TOOLS = Tools(sandbox=open_sandbox(Limits()))
CODE = "```python\ndef aux(word):\n    return count_vowels(word.strip())\n```"


def wrapped(task: BaseTask[Any], *sets: str) -> BaseTask[Any]:
    return thoughtful(resolve([], sets), task)


def play(task: BaseTask[Any], policy: Scripted) -> Tree[Any]:
    rollout = Rollout(task, team(task), policy, task_rater(task, TOOLS), Chains(1))
    return asyncio.run(rollout.play(task.problems("train")[0], 1))


def says(request: Request) -> str:
    return f"<{request.agent} {kind_of(request.messages[-1].content) or 'acts'}>"


def asked(policy: Scripted) -> list[list[tuple[str, str]]]:
    return [[(r.agent, r.messages[-1].content) for r in batch] for batch in policy.batches]


def test_agents_at_once_first_infer_both_and_then_act_both() -> None:
    task = wrapped(Duo(), "agents.left.infer=true", "agents.right.infer=true")
    policy = Scripted(says)
    leaf = play(task, policy).leaves[0].trajectory
    first, then = asked(policy)
    assert [who for who, _ in first] == [who for who, _ in then] == ["left", "right"]
    assert [kind_of(text) for _, text in first] == ["belief", "belief"]
    assert "what do you believe right will do" in first[0][1]
    left, right = (text for _, text in then)
    assert left.startswith("agree, left\n\nYou believe:\n<left belief>\n\nNow act")
    assert "<right" not in left
    assert "<left" not in right
    assert leaf.state.inner.said == (("left", "<left acts>"), ("right", "<right acts>"))
    assert [turn.agent for turn in leaf.turns] == ["left", "right"] * 2


def test_a_chain_of_one_agent_lets_the_other_wait_and_its_steps_build_on_each_other() -> None:
    task = wrapped(Duo(), "agents.left.infer=true", "agents.left.chain=[plan, Name a risk.]")
    policy = Scripted(says)
    play(task, policy)
    batches = asked(policy)
    assert [[who for who, _ in batch] for batch in batches] == [["left"]] * 3 + [["left", "right"]]
    assert "short plan" in batches[1][0][1]
    assert "You believe:\n<left belief>" in batches[1][0][1]
    assert batches[2][0][1].count("You wrote before:\n<left step>") == 1
    assert "Name a risk." in batches[2][0][1]
    assert batches[3][0][1].count("You wrote before:\n<left step>") == 2
    assert batches[3][1][1] == "agree, right"
    assert count_stages(task, task.problems("train")[0]) == 4


def test_agents_in_order_are_compared_with_whoever_acts_next() -> None:
    answers = {"writer": "belief", "reviewer": "shorter sentences", "refactorer": "tidy names"}
    lines = {"writer": "It wants shorter sentences.\nAnd a second line.", "refactorer": "nobody"}

    def answer(request: Request) -> str:
        inferring = kind_of(request.messages[-1].content) == "belief"
        return (lines if inferring else answers)[request.agent]

    task = wrapped(
        Words(),
        "agents.writer.infer=true",
        "agents.writer.infer_bonus=1",
        "agents.refactorer.infer=true",
    )
    leaf = play(task, Scripted(answer)).leaves[0].trajectory
    assert leaf.state.right == (("writer", pytest.approx(0.8)),)  # "want" besides the two
    assert leaf.state.open == (("refactorer", "nobody"),)
    assert leaf.score is not None
    found = {part.name: (part.value, part.weight) for part in leaf.score.parts}
    assert found["infer_accuracy_writer"][1] == 1.0
    assert found["infer_accuracy_refactorer"] == (0.0, 0.0)
    quality, weight = found["quality"]
    assert leaf.score.total == pytest.approx((quality * weight + 0.8) / (weight + 1.0))


def test_without_a_bonus_the_reward_is_the_tasks_own() -> None:
    plain = play(Words(), Scripted(lambda request: "a cat and a dog")).leaves[0].trajectory
    task = wrapped(Words(), "agents.writer.infer=true", "agents.reviewer.chain=[plan]")
    leaf = play(task, Scripted(lambda request: "a cat and a dog")).leaves[0].trajectory
    assert plain.score is not None
    assert leaf.score is not None
    assert leaf.score.total == plain.score.total > 0.0
    assert wrapped(plain_task := Words()) is plain_task


class Telling(Words):
    """Agents see how often they were told a score."""

    def told(self, state: Any, score: Any) -> Any:
        return type(state)(state.problem, (*state.said, ("judge", "told")))

    def to_act(self, state: Any) -> tuple[str, ...]:
        done = sum(who != "judge" for who, _ in state.said)
        return () if done == 3 else (self.agents[done].role,)


def test_a_score_is_told_once_per_action() -> None:
    policy = Scripted(says)
    play(wrapped(Telling(), "agents.reviewer.infer=true", "agents.reviewer.chain=[plan]"), policy)
    counts = [text.count("judge wrote:") for batch in asked(policy) for _, text in batch]
    assert counts == [0, 1, 1, 1, 2]


def test_a_bonus_that_nobody_could_earn_is_refused() -> None:
    sets = ("agents.refactorer.infer=true", "agents.refactorer.infer_bonus=0.5")
    task = wrapped(Words(), *sets)
    with pytest.raises(ConfigError, match=r"infer_bonus=0\.5: nobody acts at the same time as ref"):
        check_bonus(task, task.problems("train")[0])
    config = resolve([], ["task=story", "agents.narrator.infer=true", "provider.name=fake"])
    assert set_up(config, print, seat_policy).task.part_weights["infer_accuracy_narrator"] == 0.0


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("infer_bonus=0.1", "infer_bonus=0.1 pays for inferences, and infer is false"),
        ("chain=['  ']", "chain has a blank step"),
    ],
)
def test_settings_that_can_not_mean_anything_are_refused(key: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve([], [f"agents.main.{key}"])


def test_a_team_of_one_has_nobody_to_infer() -> None:
    class Alone(Words):
        agents = Words.agents[:1]

    with pytest.raises(ConfigError, match="there is no partner to infer"):
        wrapped(Alone(), "agents.writer.infer=true")
    assert wrapped(Alone(), "agents.writer.chain=[plan]").agents == Alone.agents


def test_what_an_inference_is_compared_with() -> None:
    assert accuracy("it calls count_vowels on aux", [CODE], "") == pytest.approx(6 / 8)
    assert accuracy("calls count_vowels, strip, aux", [CODE], "") == pytest.approx(8 / 9)
    assert accuracy("count vowels", [CODE], "Count the vowels.") == 0.0  # the prompt says it
    assert accuracy("", [CODE], "") == accuracy("vowels", [""], "") == 0.0
    assert accuracy("She sorts apples", ["sorting the apple"], "") == 1.0


@given(line=st.text(max_size=80), actions=st.lists(st.text(max_size=80), max_size=3))
def test_accuracy_is_in_range_and_repeating_oneself_earns_nothing(
    line: str, actions: list[str]
) -> None:
    found = accuracy(line, actions, "")
    assert 0.0 <= found <= 1.0
    assert accuracy(f"{line} {line}", actions, "") == found
    assert accuracy(line, actions, line) == 0.0


def test_a_line_of_all_words_is_less_right_than_the_right_ones() -> None:
    words = [f"{a}{b}{c}x" for a in "bcdfg" for b in "aou" for c in "lmnrt"]
    done = " ".join(words[:MOST_WORDS])
    assert accuracy(done, [done], "") == 1.0
    assert accuracy(" ".join(words), [done], "") < 0.3


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("code_collaboration", "main"),
        pytest.param("house_style", "writer", marks=pytest.mark.slow),
        pytest.param("story", "writer", marks=pytest.mark.slow),
    ],
)
async def test_wrapped_tasks_keep_every_rule(name: str, role: str) -> None:
    sets = ["options.turns=2"] if name == "code_collaboration" else []
    sets += [f"task={name}", f"agents.{role}.infer=true", f"agents.{role}.chain=[plan]"]
    config: RunConfig = resolve([], sets)
    findings = await check_task(playable(config, print, seat_policy), TOOLS.sandbox, seeds=(0,))
    assert [finding for finding in findings if not finding.ok] == []
