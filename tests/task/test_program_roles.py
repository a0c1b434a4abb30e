"""Which agent a program's call is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry import AgentSpec, AgentTask
from orchestry.core.errors import TaskError
from orchestry.core.types import Message
from orchestry.task.programs.agent_task import Ask
from orchestry.task.programs.roles import HEADER, TEAM, called, named_by, role_of
from orchestry.task.programs.wire import Unreadable


def team(models: Mapping[str, str], marks: Mapping[str, str] = {}) -> Any:
    """A task with these agents, by the names that the program has for their models."""
    kind = type(
        "Team",
        (AgentTask,),
        {
            "name": "team",
            "agents": tuple(AgentSpec(role=role) for role in models),
            "models": {role: one for role, one in models.items() if one},
            "marks": marks,
            "command": ("true",),
            "problems": lambda self, split: [],
        },
    )
    return kind()


def found(task: Any, model: str, system: str = "", named: str = "") -> str:
    told = (Message(role="system", content=system), Message(role="user", content="a checker?"))
    return role_of(task, named, model, Ask("", told))


MIXED = team({"drafter": "gpt-4o-mini", "checker": "openai/gpt-4o"})
SAME = team({"drafter": "gpt-4o", "fact_checker": "gpt-4o", "editor": ""})
MARKED = team(
    {"drafter": "gpt-4o", "checker": "gpt-4o"}, {"drafter": "Write it.", "checker": "Check it."}
)


@pytest.mark.parametrize(
    ("task", "model", "system", "role"),
    [
        (MIXED, "gpt-4o-mini", "", "drafter"),
        (MIXED, "openai/gpt-4o", "", "checker"),
        (MIXED, "gpt-4o", "", "checker"),
        (MIXED, "openrouter/openai/gpt-4o", "", "checker"),
        (MIXED, "openai/drafter", "", "drafter"),
        (MIXED, "checker", "You are the drafter.", "checker"),
        (SAME, "gpt-4o", "You are the drafter.", "drafter"),
        (SAME, "openai/gpt-4o", "You are a Fact Checker.", "fact_checker"),
        (SAME, "editor", "You are the drafter.", "editor"),
        (MARKED, "gpt-4o", "Check it. The drafter wrote it.", "checker"),
        (team({"agent": ""}), "whatever", "", "agent"),
    ],
)
def test_a_model_or_else_the_system_prompt_says_who_is_asked(
    task: Any, model: str, system: str, role: str
) -> None:
    assert found(task, model, system) == role


@pytest.mark.parametrize(
    ("task", "system", "which"),
    [
        (SAME, "", "none of them"),
        (SAME, "You are the redrafter's editor.", "none of them"),
        (SAME, "Drafter and fact-checker", "drafter, fact_checker"),
        (MARKED, "You are the drafter.", "none of them"),
    ],
)
def test_a_call_that_may_mean_several_is_refused(task: Any, system: str, which: str) -> None:
    with pytest.raises(Unreadable, match=f"names {which}: give each .*{HEADER}, or `marks`"):
        found(task, "gpt-4o", system)


def test_an_address_or_a_header_names_an_agent_outright() -> None:
    assert found(SAME, "gpt-4o", "You are the drafter.", "editor") == "editor"
    assert named_by(TEAM, "editor") == named_by("editor", "") == named_by("editor", "editor")
    assert named_by(TEAM, "") == ""
    with pytest.raises(Unreadable, match="names 'a' and the header"):
        named_by("a", "b")
    for named, model in (("reader", "gpt-4o"), ("", "gpt-4"), ("", ""), ("", "/"), ("", "mini")):
        with pytest.raises(TaskError, match=r"no agent .*, only drafter, fact_checker, editor"):
            found(SAME, model, "You are the drafter.", named)


@given(
    model=st.text(alphabet="ab/-", max_size=6),
    system=st.text(alphabet="ab /.", max_size=12),
    models=st.dictionaries(
        st.sampled_from(["a", "b", "b/a"]),
        st.sampled_from(["", "a", "b", "c/a"]),
        min_size=1,
    ),
)
def test_an_agent_is_found_or_the_call_refused(
    model: str, system: str, models: dict[str, str]
) -> None:
    """Whoever is found bears the model's name; nobody is found by a guess."""
    task = team(models)
    meant = called(task, model) if len(models) > 1 else [*models]
    try:
        role = found(task, model, system)
    except (TaskError, Unreadable):
        assert len(meant) != 1
    else:
        assert role in meant


@pytest.mark.parametrize("name", ["models", "marks"])
def test_a_name_for_an_agent_that_is_not_there_is_refused(name: str) -> None:
    task = team({"drafter": ""})
    setattr(type(task), name, {"writer": "gpt-4o"})
    with pytest.raises(TaskError, match="names writer, and its agents are drafter"):
        task.asked_agents()
