"""The walk behind the dry run's maximum: every call at its worst, counted where it can be."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import orchestry
from orchestry import BaseTask, Problem
from orchestry.engine.bound import LOOKED_AT, Courses, _verdict, finish, most
from orchestry.engine.estimate import estimate
from orchestry.engine.plan import Plan
from orchestry.store.journal import Reserved, read
from orchestry.task.guard import count_stages
from tests.engine.test_estimate import CLAUDE, JUDGED, config, plan_of


def test_the_maximum_takes_a_verdict_for_each_sibling_set_that_the_judge_may_see() -> None:
    base = ("task=relay", "search.k_samples=4", "search.beam_width=2", "episodes=2")
    off, on, always, twice, alone = (
        most(plan_of(*base, "behaviors.enabled=false", *sets), Courses())[0]
        for sets in (
            ("judge.enabled=false",),
            ("judge.enabled=true", "judge.repeats=1"),
            ("judge.enabled=true", "judge.repeats=1", "judge.when=always"),
            ("judge.enabled=true", "judge.repeats=2"),
            ("judge.enabled=true", "search.strategy=single"),
        )
    )
    assert on > off
    assert always > on
    assert twice - off == pytest.approx(2 * (on - off))
    single = plan_of(*base, "judge.enabled=false", "search.strategy=single")
    assert alone == most(single, Courses())[0]  # a chain has no siblings


def test_the_maximum_has_no_verdict_where_nothing_is_pruned() -> None:
    base = ("task=relay", "search.strategy=best_of_n", "episodes=2", "behaviors.enabled=false")
    off, idle, always = (
        most(plan_of(*base, *sets), Courses())[0]
        for sets in (
            ("judge.enabled=false",),
            ("judge.enabled=true",),
            ("judge.enabled=true", "judge.when=always"),
        )
    )
    assert off == idle < always


@pytest.mark.parametrize("size", [9, 27, 60])
def test_large_sibling_sets_are_billed_no_less_than_their_prompt(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Claude's bound counts bytes, so that longer labels would show."""
    plan = plan_of(*CLAUDE, *JUDGED, "judge.max_chars=200")
    course, problem = (("writer",), ("reviewer",)), plan.problem(0)
    scaled = _verdict(plan, problem, course, size)
    monkeypatch.setattr("orchestry.engine.bound.SHOWN", size)
    whole = _verdict(plan, problem, course, size)
    assert whole <= scaled <= 1.5 * whole


def test_replays_are_part_of_the_maximum() -> None:
    none, all_ = (
        most(plan_of("task=relay", "episodes=1", f"credit.share={share}"), Courses())[0]
        for share in (0, 1)
    )
    assert 2 * none < all_


def test_the_maximum_is_reached_where_a_run_leaves_nothing_to_chance(tmp_path: Path) -> None:
    sets = ("sampling.max_tokens=1", "search.strategy=single", "retry.attempts=1", "task=relay")
    chosen = config(*sets)
    run = orchestry.train(chosen, tmp_path / "run")
    top = estimate(chosen).cost_usd.max
    assert top is not None
    reserved = [e.usd for e in read(run.folder / "journal.jsonl") if isinstance(e, Reserved)]
    assert run.summary.cost_usd <= top <= 2 * sum(reserved)


def test_the_maximum_counts_answers_that_a_task_takes_for_the_same() -> None:
    """code_review keeps the transcript whole, but shows the next agent only an answer's code."""
    plan = plan_of("task=code_review", "episodes=2", "search.k_samples=2")
    shown = _prompts(plan)
    top, _ = most(plan, Courses())
    worst = plan.backend.prices.worst
    assert top >= 6 * sum(worst("fake-1", size // 4, 512, shared=True) for size in shown)


def _prompts(plan: Plan) -> list[int]:
    """Bytes of the prompts of a transcript whose answers are all code of the greatest length."""
    task, problem = plan.task, plan.problem(0)
    state, sizes = task.reset(problem, 0), list[int]()
    while actors := task.to_act(state):
        sizes += [len(task.observe(state, agent)) for agent in actors]
        code = f"```python\n{'x' * 512 * 4}\n```"
        state = task.step(state, dict.fromkeys(actors, code))
    assert len(sizes) == count_stages(task, problem)
    assert max(sizes) > 512 * 4, "the task hides fenced answers: the bound needs another shape"
    return sizes


def test_samples_after_the_first_may_have_longer_prompts() -> None:
    """Claude gets an angle behind the prompt of each further sample, which is billed too."""
    plan = plan_of(*CLAUDE, "task=relay", "episodes=1", "retry.attempts=1", "search.k_samples=2")
    single = plan_of(*CLAUDE, "task=relay", "episodes=1", "retry.attempts=1", "search.k_samples=1")
    stages = 1 + 2 * plan.config.search.beam_width  # calls of k=2 over those of k=1, by pool
    assert most(single, Courses())[1] == 3
    assert most(plan, Courses())[1] == 2 * stages
    assert most(plan, Courses())[0] > 2 * most(single, Courses())[0]


def odd(tmp_path: Path, name: str, body: str) -> tuple[str, str]:
    """Settings for a task of one agent whose to_act or reset is `body`."""
    folder = tmp_path / "odd" / name
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(ODD.replace("{name}", name).replace("{body}", body))
    return f"task={name}", f"task_path=[{folder.parent}]"


ODD = """
from orchestry import AgentSpec, Problem, TeamTask, Transcript

class Odd(TeamTask):
    name = "{name}"
    agents = (AgentSpec(role="solo", goal="Say FINISHED once you are."),)

    def problems(self, split):
        return [Problem(id=f"p{n}", prompt="go " * 40 * (n + 1), split=split) for n in range(3)]

    {body}

    async def evaluate(self, state, tools):
        return self.score(quality=0.5)
"""
ENDS = "not s.said or (len(s.said) < 22 and {so})"
"""Goes on for 22 turns at most, as the last answer, or the first, says."""


@pytest.mark.parametrize(
    "so",
    [
        "'x' not in s.said[-1][1] and s.said[-1][1]",
        "'APPROVED' in s.said[-1][1]",
        "len(s.said[-1][1]) % 3",
        pytest.param("'FINISHED' not in s.said[-1][1] and s.said[-1][1]", marks=pytest.mark.slow),
        pytest.param("len(s.said[-1][1]) > 9", marks=pytest.mark.slow),
    ],
)
def test_where_the_answers_decide_the_length_only_a_budget_is_a_maximum(
    tmp_path: Path, so: str
) -> None:
    name = f"odd_{crc32(so.encode())}"
    body = f"def to_act(self, s): return ('solo',) if {ENDS.replace('{so}', so)} else ()"
    sets = (*odd(tmp_path, name, body), "sampling.max_tokens=16", "search.k_samples=2")
    usd = estimate(config(*sets)).cost_usd
    assert usd.max is None
    assert 0 < usd.p5 <= usd.expected <= usd.p95
    capped = estimate(config(*sets, "budget.usd=0.5")).cost_usd
    assert capped.max == 0.5
    assert capped.p95 <= 0.5


def test_a_million_episodes_are_counted_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = plan_of("episodes=1000"), plan_of("episodes=1000000")
    begun, reset = count(), type(many.task).reset

    def counted(task: BaseTask[Any], problem: Problem, seed: int) -> Any:
        next(begun)
        return reset(task, problem, seed)

    monkeypatch.setattr(type(many.task), "reset", counted)
    assert most(many, Courses())[0] == pytest.approx(1000 * most(few, Courses())[0], rel=1e-9)
    usd = estimate(many.config).cost_usd
    assert usd.max is not None
    assert usd.p95 < usd.max
    assert next(begun) < 10_000


def test_counting_gives_what_walking_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of three lengths, so that a wrong count would show."""
    plan = plan_of(*odd(tmp_path, "odd_lengths", ""), "episodes=29")
    walked = most(plan, Courses())
    monkeypatch.setattr("orchestry.engine.bound.LOOKED_AT", 10)
    counted = Courses()
    assert most(plan, counted) == walked
    assert counted.fixed


def test_first_states_that_vary_with_the_seed_are_walked_or_give_no_maximum(
    tmp_path: Path,
) -> None:
    body = (
        "def reset(self, problem, seed): return Transcript(problem, (('solo', 'a' * (seed % 7)),))"
    )
    body += "\n    rounds = 3"
    sets = odd(tmp_path, "odd_seeds", body)
    assert estimate(config(*sets, "episodes=50")).cost_usd.max is not None
    assert estimate(config(*sets, f"episodes={LOOKED_AT + 1}")).cost_usd.max is None


def test_an_episode_that_waits_is_no_estimate() -> None:
    with pytest.raises(orchestry.OrchestryError, match="report this as a bug"):
        finish(asyncio.sleep(0))
