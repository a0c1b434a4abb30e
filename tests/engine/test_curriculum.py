"""Curricula: the easy problems first, or those that a team solves about half of the time."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError
from orchestry.core.seeds import shuffled
from orchestry.core.types import Problem
from orchestry.engine.curriculum import FLOOR, by_grade, by_success, success_rates
from orchestry.engine.run import prepare, resume
from orchestry.store.records import EpisodeRecord
from tests.engine.test_learning import model
from tests.engine.test_run import PRICED, TASKS, artefacts, kill_at

GRADED = '''
from orchestry import AgentSpec, Problem, TeamTask


class Graded(TeamTask):
    """The reward is the share of the wanted length that the answer has."""

    name = "graded"
    agents = (AgentSpec(role="writer"),)

    def problems(self, split):
        data = [{"grade": 3 - n % 3} for n in range(9)]
        return [
            Problem(id=f"{split}-{n}", prompt=f"Write {n}.", data=one, split=split)
            for n, one in enumerate(data)
        ]

    async def evaluate(self, state, tools):
        wanted = 3 ** int(state.problem.id.rpartition("-")[2])
        return self.score(quality=min(1.0, len(state.last("writer")) / wanted))
'''
SETS = ("task=graded", "cache.enabled=false", "search.k_samples=2", "seed=3")
LEARNS = ("behaviors.enabled=true", "behaviors.every=4", "behaviors.share=0.5", "judge.every=9")


def problem(number: int, **data: Any) -> Problem:
    return Problem(id=str(number), prompt="", data=data, split="train")


def record(episode: int, problem: str, reward: float, failed: str = "") -> EpisodeRecord:
    return EpisodeRecord(
        episode=episode,
        problem=problem,
        split="train",
        seed=0,
        best="",
        reward=reward,
        mean_leaf_reward=reward,
        calls=0,
        usd=0.0,
        input_tokens=0,
        output_tokens=0,
        nodes=(),
        groups=(),
        failed=failed,
    )


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "graded").mkdir()
    (folder / "graded" / "task.py").write_text(GRADED)
    return folder


def config(tasks: Path, *sets: str) -> RunConfig:
    return resolve([], [f"task_path=[{tasks}]", *SETS, *sets])


def test_without_a_curriculum_the_order_is_that_of_earlier_releases(tasks: Path) -> None:
    plan = prepare(config(tasks, "provider.name=fake"))
    first = [plan.problems[n] for n in shuffled(9, 3, "epoch", 0)]
    second = [plan.problems[n] for n in shuffled(9, 3, "epoch", 1)]
    assert plan.draw(range(18), []) == [*first, *second]


def test_the_first_pass_goes_by_grade_and_later_ones_are_shuffled(tasks: Path) -> None:
    plain = prepare(config(tasks, "provider.name=fake"))
    plan = prepare(config(tasks, "provider.name=fake", "curriculum=grade"))
    first = plan.draw(range(9), [])
    assert [one.data["grade"] for one in first] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert first == by_grade(plan.problems, 3) != by_grade(plan.problems, 4)
    assert len({one.id for one in first}) == 9
    assert plan.draw(range(9, 27), []) == plain.draw(range(9, 27), [])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("task=words", "curriculum=grade"), "have none"),
        (("curriculum=success",), "this run makes none"),
        (("curriculum=grade", "problem={prompt: a, data: {grade: 1}}"), "the only one here"),
        (("curriculum=hard",), "'none', 'grade' or 'success'"),
    ],
)
def test_a_curriculum_that_would_do_nothing_is_refused(
    tasks: Path, sets: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare(config(tasks, f"task_path=[{tasks}, {TASKS}]", "provider.name=fake", *sets))


def test_success_rates_have_a_prior_and_fade() -> None:
    problems = [problem(n) for n in range(4)]
    before = [
        record(0, "0", 0.0),
        record(1, "1", 0.0),
        record(2, "1", 1.0),
        record(3, "2", 1.0),
        record(4, "2", 0.0),
        record(5, "0", 1.0, failed="a call failed"),
    ]
    rates = success_rates(problems, before)
    assert rates == pytest.approx([0.25 / 1.5, 1.25 / 2.0, 0.75 / 2.0, 0.5])
    assert rates == success_rates(problems, before[::-1]), "the order of finishing is not seen"


RATES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


@given(RATES, st.integers(1, 30), st.integers(0, 5))
def test_each_problem_comes_as_often_as_its_share_says(
    rewards: list[float], size: int, seed: int
) -> None:
    problems = [problem(n) for n in range(len(rewards))]
    before = [record(n, str(n), reward) for n, reward in enumerate(rewards)]
    drawn = by_success(problems, range(20, 20 + size), before, seed)
    rates = success_rates(problems, before)
    total = sum(p * (1 - p) for p in rates)
    found = Counter(one.id for one in drawn)
    assert len(drawn) == size
    for number, p in enumerate(rates):
        share = FLOOR / len(rates) + (1 - FLOOR) * p * (1 - p) / total
        assert abs(found[str(number)] - share * size) < 1 + 1e-9


def test_no_problem_is_given_up() -> None:
    problems = [problem(n) for n in range(4)]
    before = [record(n, str(n % 4), float(n % 4 == 0)) for n in range(40)]
    before += [record(n, "3", float(n % 2)) for n in range(40, 60)]
    found = Counter(
        one.id
        for block in range(400)
        for one in by_success(problems, range(60 + 4 * block, 64 + 4 * block), before, 0)
    )
    assert all(found[str(n)] > FLOOR * 400 for n in range(4))
    assert found["3"] > 1.5 * max(found[str(n)] for n in range(3))


def test_problems_follow_from_the_blocks_before_whatever_finishes_first(
    tasks: Path, tmp_path: Path
) -> None:
    found = []
    for at_once in (1, 4):
        with model() as (_, where):
            sets = (*LEARNS, "curriculum=success", "episodes=12", *where)
            more = f"search.episodes_in_flight={at_once}"
            run = orchestry.train(config(tasks, *sets, more), tmp_path / f"at-{at_once}")
        found.append([record.problem for record in run.episodes])
    assert found[0] == found[1]
    plain = [one.id for one in prepare(config(tasks, "provider.name=fake")).draw(range(12), [])]
    assert found[0] != plain


def test_a_killed_run_goes_on_with_the_same_problems_and_a_prolonged_one_too(
    tasks: Path, tmp_path: Path
) -> None:
    sets = [f"task_path=[{tasks}]", *SETS, *LEARNS, *PRICED, "provider.name=fake"]
    sets += ["curriculum=success", "provider.fake.latency_s=0.005"]
    whole = orchestry.train(resolve([], [*sets, "episodes=12"]), tmp_path / "whole")
    short = orchestry.train(resolve([], [*sets, "episodes=10"]), tmp_path / "short")
    assert resume(short.folder, {"episodes": 12}).rewards == whole.rewards
    folder = tmp_path / "killed"
    words = [word for item in (*sets, "episodes=12") for word in ("--set", item)]
    kill_at(b'"committed","episode":6', folder, "run", "--run-dir", str(folder), *words)
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)
    shutil.rmtree(folder)
