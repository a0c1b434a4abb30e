"""Who sees what, and what is scored, when a task is played as a baseline has it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry import AgentSpec, Score, Transcript
from orchestry.core.config import AgentConfig, RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.types import Limits, Request, Tools, Tree
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.task.arrangements import (
    ALONE,
    BASELINES,
    Single,
    arranged,
    check_first_state,
    heading,
    shared_out,
)
from orchestry.task.base import BaseTask
from orchestry.task.guard import count_stages
from tests.toys import Duo, Scripted, Words, team

TOOLS = Tools(sandbox=open_sandbox(Limits()))


def play(name: str, task: BaseTask[Any], policy: Scripted, n: int = 1) -> Tree[Any]:
    _, other = arranged(RunConfig(baseline=name), task)
    rollout = Rollout(other, team(other), policy, task_rater(other, TOOLS), Chains(n))
    return asyncio.run(rollout.play(task.problems("train")[0], 1))


def asked(policy: Scripted) -> list[list[tuple[str, str]]]:
    """By batch: who was asked, and the last message."""
    return [[(r.agent, r.messages[-1].content) for r in batch] for batch in policy.batches]


def says(request: Request) -> str:
    return f"<{request.agent}>"


def test_concat_asks_all_at_once_and_shows_nobody_anything() -> None:
    policy = Scripted(says)
    tree = play("concat", Words(), policy)
    prompt = "word 0"
    assert asked(policy) == [[(who, prompt) for who in ("writer", "reviewer", "refactorer")]]
    state = tree.leaves[0].trajectory.state.inner
    assert state.said == (
        ("writer", "<writer>"),
        ("reviewer", "<reviewer>"),
        ("refactorer", "<refactorer>"),
    )


def test_concat_gives_an_agent_its_one_answer_in_every_round() -> None:
    class Twice(Words):
        rounds = 2

    policy = Scripted(says)
    tree = play("concat", Twice(), policy)
    assert policy.calls == 3
    assert tree.leaves[0].trajectory.state.inner.by("writer") == ("<writer>", "<writer>")


def test_sequential_lets_the_second_of_two_read_the_first() -> None:
    policy = Scripted(says)
    play("sequential", Duo(), policy)
    (first,), (second,) = asked(policy)
    assert first == ("left", "agree, left")
    assert second[0] == "right"
    assert second[1].startswith("agree, right\n\n")
    assert second[1].endswith("left wrote:\n<left>")


def test_sequential_plays_a_task_in_order_as_it_is() -> None:
    plain, other = Scripted(says), Scripted(says)
    rollout = Rollout(Words(), team(Words()), plain, task_rater(Words(), TOOLS), Chains(2))
    asyncio.run(rollout.play(Words().problems("train")[0], 1))
    play("sequential", Words(), other, n=2)
    assert [[(r.agent, r.messages, r.seed) for r in b] for b in plain.batches] == [
        [(r.agent, r.messages, r.seed) for r in b] for b in other.batches
    ]


class Judged(Duo):
    """Tells its agents what a joint action was worth, and goes on for two rounds."""

    def to_act(self, state: Any) -> tuple[str, ...]:
        return () if len(state.said) == 4 else ("left", "right")

    def step(self, state: Any, actions: Any) -> Any:
        from dataclasses import replace

        return replace(state, said=(*state.said, *sorted(actions.items())))

    def observe(self, state: Any, agent: str) -> str:
        return f"{state.problem.prompt} {len(state.said)}"

    def told(self, state: Any, score: Score) -> Any:
        from dataclasses import replace

        problem = state.problem.model_copy(update={"prompt": f"worth {score.total:g}"})
        return replace(state, problem=problem)


def test_sequential_tells_what_the_task_tells_between_joint_actions_only() -> None:
    policy = Scripted(lambda request: "same")
    play("sequential", Judged(), policy)
    seen = [text.partition("\n")[0] for ((_, text),) in asked(policy)]
    assert seen == ["agree 0", "agree 0", "worth 1 2", "worth 1 2"]


def test_discussion_counts_the_answers_that_were_written_knowing_the_drafts() -> None:
    def answers(request: Request) -> str:
        return "final" if "Your draft" in request.messages[-1].content else f"<{request.agent}>"

    policy = Scripted(answers)
    tree = play("discussion", Duo(), policy)
    drafts, finals = asked(policy)
    assert drafts == [("left", "agree, left"), ("right", "agree, right")]
    left = dict(finals)["left"]
    assert "Your draft:\n<left>" in left
    assert "right wrote:\n<right>" in left
    assert "left wrote" not in left
    assert tree.leaves[0].number == 1.0


def test_fixed_is_one_call_of_one_agent_who_writes_for_all() -> None:
    policy = Scripted(lambda request: "## left\nsame\n## right\nsame")
    tree = play("fixed", Duo(), policy)
    (((who, text),),) = asked(policy)
    assert who == ALONE
    assert text.startswith("## left\nagree, left\n\n## right\nagree, right")
    assert tree.leaves[0].number == 1.0


@pytest.mark.parametrize(
    ("answer", "tags"), [("## left\nx\n## right\nx", ()), ("x", ("no_parts",))]
)
def test_an_answer_that_keeps_no_headings_is_counted(answer: str, tags: tuple[str, ...]) -> None:
    tree = play("fixed", Duo(), Scripted(lambda request: answer))
    score = tree.leaves[0].trajectory.score
    assert score is not None
    assert (score.total, score.tags) == (1.0, tags)


def test_fixed_knows_every_agents_prompt_and_may_write_as_much_as_all() -> None:
    config = RunConfig(
        baseline="fixed",
        agents={"left": AgentConfig(system_prompt="Whisper."), "right": AgentConfig(max_tokens=7)},
    )
    settled, task = arranged(config, Duo())
    prompt = task.agents[0].system_prompt
    assert "## left\nWhisper." in prompt
    assert "## right\nYou are the right of a team." in prompt
    own = settled.agents[ALONE]
    assert (own.max_tokens, own.system_prompt) == (config.sampling.max_tokens + 7, prompt)
    assert arranged(settled, Duo())[0] == settled  # as a resume finds it


def test_single_is_asked_the_problem_and_answers_for_all() -> None:
    policy = Scripted(lambda request: "a a a")
    tree = play("single", Words(), policy)
    assert asked(policy) == [[(ALONE, "word 0")]]
    state = tree.leaves[0].trajectory.state
    assert state.inner.said == tuple((spec.role, "a a a") for spec in Words.agents)
    assert tree.leaves[0].number == pytest.approx(0.3)


def test_single_has_the_goals_of_a_task_that_does_not_word_it() -> None:
    config, task = arranged(RunConfig(baseline="single"), Words())
    prompt = task.agents[0].system_prompt
    assert "writer: write\nreviewer: review\nrefactorer: improve" in prompt
    own = config.agents[ALONE]
    assert (own.system_prompt, own.max_tokens) == (prompt, 3 * config.sampling.max_tokens)
    assert arranged(config, Words())[0] == config  # as a resume finds it


class Praised(Words):
    """Half of its reward is for what only a team does; its evaluate is no coroutine."""

    weights: ClassVar[Mapping[str, float]] = {"quality": 0.5, "praise": 0.5}
    team_parts = ("praise",)

    def evaluate(self, state: Transcript, tools: Tools) -> Score:  # type: ignore[override]
        work = state.last("refactorer")
        return self.score(quality=work.count("a") / 10, praise=0.2, tags=("tried",))


def test_single_is_scored_without_what_only_a_team_can_earn() -> None:
    tree = play("single", Praised(), Scripted(lambda request: "aaaaa"))
    score = tree.leaves[0].trajectory.score
    assert score is not None
    assert [(part.name, part.value) for part in score.parts] == [("quality", 0.5)]
    assert (score.total, score.tags) == (0.5, ("tried",))


@given(st.lists(st.sampled_from(["## a", "b:", "x = 1", "# A #", "**B**", "a b", ""])))
def test_singles_answer_is_whole_unless_every_part_has_its_heading(lines: list[str]) -> None:
    class Letters(Duo):
        agents = (AgentSpec(role="a"), AgentSpec(role="b"))

    _, task = arranged(RunConfig(baseline="single"), Letters())
    assert isinstance(task, Single)
    answer = "\n".join(lines)
    found = task.shares(answer)
    headed = {"## a", "# A #"} & {*lines} and {"b:", "**B**"} & {*lines}
    assert found == (shared_out(answer, ("a", "b")) if headed else dict.fromkeys("ab", answer))


def test_fixed_is_the_model_that_all_agents_are() -> None:
    own = {role: AgentConfig(model="m", temperature=0.3) for role in ("left", "right")}
    settled, _ = arranged(RunConfig(baseline="fixed", agents=own), Duo())
    assert (settled.agents[ALONE].model, settled.agents[ALONE].temperature) == ("m", 0.3)
    other = {**own, "right": AgentConfig(model="n", temperature=0.3)}
    with pytest.raises(ConfigError, match=r"one model alone, .* more than one model \(m, n\)"):
        arranged(RunConfig(baseline="fixed", agents=other), Duo())
    usual = RunConfig(baseline="fixed", provider={"model": "m"}, agents={"left": own["left"]})
    with pytest.raises(ConfigError, match=r"more than one temperature \(0.3, the default\)"):
        arranged(usual, Duo())


@pytest.mark.parametrize("name", ["concat", "discussion"])
def test_a_task_that_shows_answers_only_is_refused_before_anything_is_spent(name: str) -> None:
    class Relay(Words):
        def observe(self, state: Transcript, agent: str) -> str:
            return state.said[-1][1] if agent == "reviewer" else state.problem.prompt

    config, task = arranged(RunConfig(baseline=name), Relay())
    with pytest.raises(ConfigError, match=rf"baseline {name} asks .* raises IndexError there"):
        check_first_state(config, task, task.problems("train")[0])


@pytest.mark.parametrize("name", ["fixed", "single", "concat", "sequential", "discussion"])
def test_a_baseline_keeps_problems_reward_and_options(name: str) -> None:
    _, task = arranged(RunConfig(baseline=name), Words())
    assert (task.name, task.problems("dev")) == ("words", Words().problems("dev"))
    assert (task.part_weights, task.judged, task.solved) == ({"quality": 1.0}, True, None)
    assert (
        count_stages(task, task.problems("dev")[0])
        == {
            "fixed": 1,
            "single": 1,
            "concat": 1,
            "sequential": 3,
            "discussion": 2,
        }[name]
    )


def test_a_task_of_one_agent_has_no_team_to_compare_with() -> None:
    class Solo(Words):
        agents = Words.agents[:1]

    with pytest.raises(ConfigError, match="has one agent"):
        arranged(RunConfig(baseline="concat"), Solo())
    assert arranged(RunConfig(), Solo())[1].name == "words"


def test_a_task_that_never_ends_is_named() -> None:
    class Endless(Words):
        def to_act(self, state: Transcript) -> tuple[str, ...]:
            return ("writer",)

    from orchestry.core.errors import TaskError

    with pytest.raises(TaskError, match="does not end within"):
        play("concat", Endless(), Scripted(says))


@given(st.dictionaries(st.sampled_from(["a", "b-2", "Main x"]), st.text("xyz #\n", max_size=20)))
def test_parts_come_back_as_they_were_written(parts: dict[str, str]) -> None:
    team_ = ("a", "b-2", "Main x")
    clean = {who: text.strip("\n") for who, text in parts.items()}
    answer = "\n".join(f"{heading(who)}\n{text}" for who, text in clean.items())
    found = shared_out(answer, team_)
    if clean:
        assert {who: found[who].strip("\n") for who in team_} == {
            who: clean.get(who, "") for who in team_
        }
    else:
        assert found == dict.fromkeys(team_, answer)


@pytest.mark.parametrize(
    "mark", ["## helper", "**helper:**", "# Helper", "helper:", "### HELPER ###"]
)
def test_headings_are_known_however_they_are_dressed(mark: str) -> None:
    assert shared_out(f"Sure!\n{mark}\none\n## main\ntwo", ("helper", "main")) == {
        "helper": "one",
        "main": "two",
    }


def test_an_answer_without_headings_is_everyones() -> None:
    assert shared_out("the helper is here", ("helper", "main")) == {
        "helper": "the helper is here",
        "main": "the helper is here",
    }


def test_every_baseline_is_explained() -> None:
    assert list(BASELINES) == [
        *("fixed", "best_of_n", "concat", "sequential", "discussion", "single")
    ]
