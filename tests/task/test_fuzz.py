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

from orchestry.core.types import SPLITS, Limits, Tools
from orchestry.sandbox import open_sandbox
from orchestry.task.fuzz import fuzz, in_place_of_a_word, kinds, played
from orchestry.task.registry import load_task

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.slow
def test_no_answers_make_a_bundled_task_raise(name: str) -> None:
    """Every role with an odd kind of answer, any text, or its gold with any text in it."""
    task = load_task(name)
    problems = [problem for split in SPLITS for problem in task.problems(split)]
    odd = {agent.role: dict(kinds(task, problems, agent.role)) for agent in task.agents}
    texts = st.text(max_size=300)
    ways = {
        role: st.tuples(st.sampled_from([*kinds]), st.none())
        | st.tuples(st.sampled_from(["any text", "any text in its gold"]), texts)
        for role, kinds in odd.items()
    }
    with sandboxed() as (runner, tools):

        @settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
        @given(st.fixed_dictionaries(ways), st.sampled_from(range(len(problems))))
        def play(ways: dict[str, tuple[str, str | None]], number: int) -> None:
            problem, rng = problems[number], random.Random(number)
            gold = task.gold(problem) or {}

            def answer(role: str, prompt: str) -> str:
                kind, text = ways[role]
                good = gold.get(role, "")
                if text is None:
                    return odd[role][kind](good, prompt, rng)
                return text if kind == "any text" else in_place_of_a_word(text, good, prompt, rng)

            assert runner.run(played(task, tools, problem, 0, answer)) is None

        play()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_no_odd_answer_makes_a_bundled_task_raise(name: str) -> None:
    """All that `tasks check` tries, on problems of its own."""
    task = load_task(name)
    problems = [problem for split in SPLITS for problem in task.problems(split)[-2:]]
    with sandboxed() as (runner, tools):
        assert [*map(str, runner.run(fuzz(task, tools, problems, 1)))] == []
