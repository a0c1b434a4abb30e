"""The central judge over a real gateway and in real rollouts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.config import FakeConfig, JudgeConfig
from orchestry.core.types import (
    ROOT,
    AgentSpec,
    Completion,
    Judgement,
    Limits,
    Part,
    Policy,
    Problem,
    Request,
    Score,
    Siblings,
    Tools,
    Trajectory,
    Tree,
    Turn,
)
from orchestry.judge.judge import ListwiseJudge
from orchestry.models.fake import FakeProvider
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Beam
from orchestry.sandbox import open_sandbox
from orchestry.store.journal import Answered
from tests.models.scripted import Run
from tests.toys import Scripted, Words, team

TEAM = (AgentSpec(role="writer", goal="Write."),)
PROBLEM = Problem(id="p", prompt="Say it.")
MALFORMED = '{"A": 7}'


def family(*texts: str, totals: tuple[float, ...] = (), over: bool = False) -> Siblings[Any]:
    """The writer's first moves; their scores tie unless given."""
    root: Trajectory[Any] = Trajectory(ROOT, PROBLEM, 5, "")
    children = []
    for index, text in enumerate(texts):
        said = Turn(agent="writer", messages=(), completion=Completion(text=text, model="m"))
        total = totals[index] if totals else 0.5
        score = Score(parts=(Part(name="quality", value=total),))
        children.append(Trajectory(root.id.child(index), PROBLEM, 5, text, (said,), score))
    return Siblings(root, ("writer",), tuple(children), frozenset(c.id for c in children if over))


def rated(request: Request, number: Callable[[str, int], float]) -> str:
    """A verdict whose quality is a function of a candidate's text and place; others are 10."""
    texts = re.findall(
        r" begin candidate \w+, by \w+\]\n(.*?)\n\[\w+ end candidate",
        request.messages[1].content,
        re.S,
    )
    assert request.response_schema is not None
    places = zip(request.response_schema["required"], enumerate(texts), strict=True)
    return json.dumps(
        {
            name: {
                "feedback": f"About {text}.",
                "quality": min(10, max(0, round(number(text, place)))),
                "collaboration": 10,
                "efficiency": 10,
            }
            for name, (place, text) in places
        }
    )


def length(text: str, place: int) -> float:
    return len(text)


def ask(policy: Policy, siblings: Siblings[Any], **config: Any) -> Judgement | None:
    only_quality = {"quality": 1.0, "collaboration": 0.0, "efficiency": 0.0}
    judge = ListwiseJudge(
        policy, "m", JudgeConfig(**({"repeats": 1} | only_quality | config)), TEAM
    )
    return asyncio.run(judge.values(siblings))


def numbers(judgement: Judgement | None) -> list[float]:
    assert judgement is not None
    return [value.number for value in judgement.values]


# --- what is asked --------------------------------------------------------------------------------


def test_one_call_rates_a_whole_set_in_the_childrens_order() -> None:
    policy = Scripted(lambda request: rated(request, length))
    judgement = ask(policy, family("aaa", "a", "aaaaa"), weight=0.3)
    assert numbers(judgement) == pytest.approx([0.3, 0.1, 0.5])
    assert judgement is not None
    assert (judgement.weight, judgement.outcome) == (0.3, "rated")
    assert [value.feedback for value in judgement.values] == [
        "About aaa.",
        "About a.",
        "About aaaaa.",
    ]
    ((request,),) = policy.batches
    assert (request.agent, request.purpose, request.max_tokens) == ("judge", "judge", 1024)


def test_repeats_are_one_batch_in_different_orders_with_different_seeds() -> None:
    policy = Scripted(lambda request: rated(request, length))
    ask(policy, family("a", "aa", "aaa", "aaaa"), repeats=4)
    (batch,) = policy.batches
    assert len({request.messages for request in batch}) == 4
    assert len({request.seed for request in batch}) == 4


def test_two_siblings_asked_four_times_are_four_requests() -> None:
    policy = Scripted(lambda request: rated(request, length))
    ask(policy, family("a", "aa"), repeats=4)
    assert len({request.seed for request in policy.batches[0]}) == 4


def test_equal_sets_are_asked_equally_and_others_are_not() -> None:
    seen = []
    for siblings in (family("a", "b"), family("a", "b")):
        policy = Scripted(lambda request: rated(request, length))
        ask(policy, siblings, repeats=2)
        seen.append(policy.batches)
    assert seen[0] == seen[1]


def test_a_place_bias_is_taken_out_again() -> None:
    policy = Scripted(
        lambda request: rated(request, lambda text, place: len(text) + 3 * (not place))
    )
    siblings = family("aaa", "aa", "aaaaaa", "aaaaa")
    once, often = (numbers(ask(policy, siblings, repeats=n)) for n in (1, 4))
    middle = 0.3 / 4
    assert often == pytest.approx([0.3 + middle, 0.2 + middle, 0.6 + middle, 0.5 + middle])
    assert once != pytest.approx(often)


def test_scales_are_weighted() -> None:
    policy = Scripted(lambda request: rated(request, lambda text, place: 2))
    found = numbers(ask(policy, family("a", "b"), quality=3.0, collaboration=1.0))
    assert found == pytest.approx([(3 * 0.2 + 1.0) / 4] * 2)


def test_calibration_and_temperature_are_used() -> None:
    policy = Scripted(lambda request: rated(request, length))
    judge = ListwiseJudge(
        policy, "m", JudgeConfig(repeats=1), TEAM, lambda n: 2.0 - n, temperature=0.2
    )
    judgement = asyncio.run(judge.values(family("a", "aa")))
    assert numbers(judgement) == [1.0, 1.0]
    assert policy.batches[0][0].temperature == 0.2


# --- when it is asked -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("siblings", "calls"),
    [
        (family("a", "b", totals=(0.1, 0.1)), 1),
        (family("a", "b", totals=(0.1, 0.2)), 0),
        (family("a", "b", totals=(0.1, 0.1), over=True), 0),
    ],
    ids=["tied", "told apart", "over"],
)
def test_undecided_spares_what_the_task_decides(siblings: Siblings[Any], calls: int) -> None:
    policy = Scripted(lambda request: rated(request, length))
    assert (ask(policy, siblings) is None) == (calls == 0)
    assert policy.calls == calls
    assert numbers(ask(policy, siblings, when="always")) == [0.1, 0.1]


# --- malformed verdicts, over a real gateway ------------------------------------------------------


async def over_gateway(
    folder: Path, first: list[str], again: str, **config: Any
) -> tuple[Judgement | None, list[Answered]]:
    """The judge behind gateway, ledger and journal; a script answers it."""
    script = folder / "script.jsonl"
    lines = [{"agent": "judge", "text": text, "match": "The candidates"} for text in first]
    lines.append({"agent": "judge", "text": again, "match": "no valid verdict"})
    script.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    run = Run(folder)
    async with run.open(FakeProvider(FakeConfig(script=script), 0, "m")) as gateway:
        judge = ListwiseJudge(gateway, "m", JudgeConfig(**({"repeats": 1} | config)), TEAM)
        judgement = await judge.values(family("left", "right"))
        for row in gateway.usage():
            assert (row.agent, row.purpose) == ("judge", "judge")
    return judgement, [event for event in run.events if isinstance(event, Answered)]


def verdict(first: int, second: int) -> str:
    scales = {"feedback": "Fine.", "collaboration": 5, "efficiency": 5}
    return json.dumps({"A": scales | {"quality": first}, "B": scales | {"quality": second}})


async def test_a_malformed_verdict_is_repaired_once(tmp_path: Path) -> None:
    judgement, answers = await over_gateway(tmp_path, [MALFORMED], verdict(9, 1))
    assert judgement is not None
    assert judgement.outcome == "repaired"
    assert sorted(numbers(judgement)) == pytest.approx([0.6 * 0.1 + 0.2, 0.6 * 0.9 + 0.2])
    assert [answer.completion.text for answer in answers] == [MALFORMED, verdict(9, 1)]
    assert all(answer.completion.usd > 0 for answer in answers)


async def test_a_verdict_malformed_twice_is_left_out(tmp_path: Path) -> None:
    judgement, answers = await over_gateway(tmp_path, [MALFORMED], MALFORMED, repeats=3)
    assert judgement == Judgement(weight=0.5, outcome="malformed")
    assert len(answers) == 6


async def test_a_resumed_run_asks_no_verdict_again(tmp_path: Path) -> None:
    first, answers = await over_gateway(tmp_path, [MALFORMED], verdict(9, 1), repeats=2)
    second, after = await over_gateway(tmp_path, ["other"], "other", repeats=2)
    assert first == second
    assert after == answers


def test_usable_repeats_stand_where_others_are_lost() -> None:
    seen: list[Request] = []

    def answer(request: Request) -> str:
        seen.append(request)
        return rated(request, length) if len(seen) == 2 else "no"

    judgement = ask(Scripted(answer), family("aaa", "a"), repeats=3)
    assert judgement is not None
    assert judgement.outcome == "repaired"
    assert numbers(judgement) == pytest.approx([0.3, 0.1])
    assert len(seen) == 5


class Cut:
    """A policy whose answers all end for one reason."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.asked: list[Request] = []

    async def sample(self, requests: Any, n: int) -> list[list[Completion]]:
        self.asked += requests
        return [[Completion(text='{"A": {"feed', model="m", stop=self.stop)] for _ in requests]


def test_a_verdict_cut_off_is_told_so() -> None:
    policy = Cut("length")
    judgement = ask(policy, family("a", "b"))
    assert judgement is not None
    assert judgement.outcome == "malformed"
    assert "cut off after 1024 tokens: be brief" in policy.asked[1].messages[-1].content


def test_a_large_set_has_room_for_its_verdict() -> None:
    policy = Cut("length")
    ask(policy, family(*map(str, range(20))))
    assert [request.max_tokens for request in policy.asked] == [2464, 2464]
    assert "cut off after 2464 tokens" in policy.asked[1].messages[-1].content


def test_a_prompt_too_long_is_not_made_longer() -> None:
    policy = Cut("too_long")
    judgement = ask(policy, family("a", "b"))
    assert judgement is not None
    assert judgement.outcome == "malformed"
    assert len(policy.asked) == 1


# --- in a rollout ---------------------------------------------------------------------------------


def play(policy: Scripted, judge: ListwiseJudge) -> Tree[Any]:
    task = Words()
    tools = Tools(sandbox=open_sandbox(Limits()))
    rate = task_rater(task, tools)
    rollout = Rollout(task, team(task), policy, rate, Beam(k=4, width=1), judge)
    return asyncio.run(rollout.play(task.problems("train")[0], 1))


def act(request: Request) -> str:
    """Writers and refactorers agree; the reviews have one to four letters."""
    return "b" * (request.sample_index + 1) if request.agent == "reviewer" else "aaa"


def test_the_judge_decides_a_tied_review() -> None:
    policy = Scripted(lambda request: rated(request, lambda text, place: 9 * (text == "bbb")))
    tree = play(Scripted(act), ListwiseJudge(policy, "m", JudgeConfig(repeats=1), Words.agents))
    assert tree.outcomes == ["rated"]
    (kept,) = [node for node in tree.nodes.values() if node.survived and node.id.stage == 2]
    assert kept.trajectory.turns[-1].completion.text == "bbb"
    opinions = {node.id: node.opinion for node in tree.nodes.values() if node.opinion is not None}
    own = opinions.pop(kept.id)
    lead = own - (own + sum(opinions.values())) / (1 + len(opinions))
    assert kept.judged is not None
    assert kept.judged.number == pytest.approx(0.3 + 0.5 * lead)
    assert kept.judged.feedback == "About bbb."
    assert all(own > opinion for opinion in opinions.values())


def test_a_malformed_judge_leaves_the_tasks_score() -> None:
    judge = ListwiseJudge(Scripted(lambda request: "?"), "m", JudgeConfig(repeats=1), Words.agents)
    tree = play(Scripted(act), judge)
    assert tree.outcomes == ["malformed"]
    assert not any(node.judged for node in tree.nodes.values())
