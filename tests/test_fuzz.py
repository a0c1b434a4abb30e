"""No answer makes a bundled task raise, played as a run plays it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from orchestry.fuzz import Say, fuzz, kinds, played, put
from orchestry.registry import load_task
from orchestry.services.sandbox import open_sandbox
from orchestry.types import SPLITS, Limits, Problem, Request, Tools

ROOT = Path(__file__).parent.parent
BUNDLED = sorted(path.parent.name for path in (ROOT / "tasks").glob("*/task.py"))


@contextmanager
def sandboxed() -> Iterator[tuple[asyncio.Runner, Tools]]:
    """An event loop, and a sandbox that lives in it."""
    with asyncio.Runner() as runner:
        sandbox = open_sandbox(Limits(cpu_s=0.5, wall_s=2.0))
        try:
            yield runner, Tools(runner.run(sandbox.__aenter__()))
        finally:
            runner.run(sandbox.__aexit__(None, None, None))


def said(text: str) -> Say:
    return lambda *_: text


def put_into_gold(text: str) -> Say:
    return lambda gold, _prompt, rng: put(gold, text, rng)


@pytest.mark.parametrize("name", BUNDLED)
def test_no_answers_make_a_bundled_task_raise(name: str) -> None:
    """Every role with an odd kind of answer, any text, or its gold with any text in it."""
    task = load_task(name)
    problems = [problem for split in SPLITS for problem in task.problems(split)]
    roles = [agent.role for agent in task.agents]
    ways = {
        role: st.sampled_from([say for _, say in kinds(task, problems, role)])
        | st.text(max_size=300).map(said)
        | st.text(max_size=300).map(put_into_gold)
        for role in roles
    }
    with sandboxed() as (runner, tools):

        @settings(max_examples=50, deadline=None, phases=[Phase.explicit, Phase.generate])
        @given(st.fixed_dictionaries(ways), st.sampled_from(problems), st.integers(0, 2**32))
        def play(says: dict[str, Say], problem: Problem, seed: int) -> None:
            gold, rng = task.gold(problem) or {}, random.Random(seed)

            def answer(request: Request) -> str:
                prompt = request.messages[-1].content
                return says[request.agent](gold.get(request.agent, ""), prompt, rng)

            assert runner.run(played(task, tools, problem, seed, answer)) is None

        play()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_no_odd_answer_makes_a_bundled_task_raise(name: str) -> None:
    """All that `tasks check` tries, on problems of its own."""
    task = load_task(name)
    problems = [problem for split in SPLITS for problem in task.problems(split)[-2:]]
    with sandboxed() as (runner, tools):
        assert [*map(str, runner.run(fuzz(task, tools, problems, 1)))] == []
