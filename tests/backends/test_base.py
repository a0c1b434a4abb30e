"""Whether a run judges and learns: as the user says, else the task, else by what the model can."""

from __future__ import annotations

import pytest

from orchestry.core.config import resolve
from orchestry.engine.plan import Plan
from orchestry.engine.run import prepare

KEYS = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}
SERVER = (
    *("provider.name=openai", "provider.model=m", "provider.base_url=http://127.0.0.1:9/v1"),
    *("prices.m.input=1", "prices.m.output=1"),
)
ABLE = {"claude": ("provider.name=anthropic",), "server": SERVER}
UNABLE = {"embedded": ("provider.name=embedded",), "fake": ("provider.name=fake",)}
PROVIDERS = {**ABLE, **UNABLE}
TASKS = {"code_review": True, "code_collaboration": False}
"""By name, whether a judge is asked where the config does not say."""


def planned(task: str, provider: str, *sets: str) -> tuple[Plan, list[str]]:
    """A run that is checked and not begun, and what its user was told."""
    notes = list[str]()
    config = resolve([], [f"task={task}", *PROVIDERS[provider], *sets])
    return prepare(config, notes.append, KEYS), notes


def found(plan: Plan) -> tuple[bool | None, bool | None, float | None]:
    config = plan.config
    return config.judge.enabled, config.behaviors.enabled, config.credit.share


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_by_default_the_task_decides_on_the_judge_and_the_model_on_learning(
    task: str, provider: str
) -> None:
    plan, notes = planned(task, provider)
    able = provider in ABLE
    assert found(plan) == (able and TASKS[task], able, 0.1 if able else 0.0)
    off = [note for note in notes if note.startswith("judge off")]
    assert len(off) == (provider == "embedded" or (able and not TASKS[task]))
    assert all("judge.enabled=true" in note for note in off)
    assert all(("noise" if provider == "embedded" else task) in note for note in off)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("said", [True, False])
def test_what_the_user_says_of_the_judge_holds_for_learning_too(
    task: str, provider: str, said: bool
) -> None:
    plan, notes = planned(task, provider, f"judge.enabled={str(said).lower()}")
    assert found(plan) == (said, said, 0.1 if said else 0.0)
    assert plan.config.judge.when == ("undecided" if TASKS[task] else "always")
    assert not any(note.startswith("judge off") for note in notes)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("judge", [(), ("judge.enabled=true",), ("judge.enabled=false",)])
@pytest.mark.parametrize("said", [True, False])
def test_what_the_user_says_of_learning_holds_whoever_judges(
    task: str, judge: tuple[str, ...], said: bool
) -> None:
    plan, _ = planned(task, "claude", *judge, f"behaviors.enabled={str(said).lower()}")
    enabled = judge == ("judge.enabled=true",) or (not judge and TASKS[task])
    assert found(plan) == (enabled, said, 0.1 if said else 0.0)


@pytest.mark.parametrize("task", TASKS)
def test_a_judge_of_its_own_counts_and_not_the_runs_provider(task: str) -> None:
    plan, notes = planned(task, "embedded", "judge.provider.name=anthropic")
    assert found(plan) == (TASKS[task], True, 0.1)
    assert any("asks for no judge" in note for note in notes) is not TASKS[task]
    plan, _ = planned(task, "claude", "judge.provider.name=embedded")
    assert found(plan) == (False, False, 0.0)


@pytest.mark.parametrize("provider", ABLE)
def test_settled_once_it_stays(provider: str) -> None:
    """The config that a run keeps says all, so that its resume says and does the same."""
    plan, _ = planned("code_collaboration", provider)
    notes = list[str]()
    again = prepare(plan.config, notes.append, KEYS)
    assert again.config == plan.config
    assert not any(note.startswith("judge off") for note in notes)
