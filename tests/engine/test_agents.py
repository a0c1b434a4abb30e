"""Agents as a config has them: goals, prompts, models, a list of roles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve, validate
from orchestry.core.errors import ConfigError
from orchestry.core.resolve import merge, read_config_file
from orchestry.engine.run import prepare, resume
from orchestry.store.run import Run

TASK = """
from orchestry import AgentSpec, Problem, TeamTask


class Open(TeamTask):
    name = "open"
    open_roles = True
    agents = (
        AgentSpec(role="writer", goal="write", system_prompt="You write."),
        AgentSpec(role="reviewer", goal="review"),
    )

    def problems(self, split):
        return [Problem(id=f"{split}-{n}", prompt=f"say {n}", split=split) for n in range(3)]

    async def evaluate(self, state, tools):
        return self.score(quality=len(state.said) / 10)
"""


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    """A config of a task with open roles, and of one with fixed ones, `closed`."""
    for name, source in (("open", TASK), ("closed", TASK.replace("open_roles = True", ""))):
        (tmp_path / "tasks" / name).mkdir(parents=True)
        (tmp_path / "tasks" / name / "task.py").write_text(source.replace('"open"', f'"{name}"'))
    return {
        "task": "open",
        "task_path": [str(tmp_path / "tasks")],
        "provider": {"name": "fake"},
        "episodes": 2,
        "search": {"k_samples": 2},
    }


def prompts(config: RunConfig) -> dict[str, str]:
    plan = prepare(config)
    return {role: member.system_prompt for role, member in plan.backend.team(plan.task).items()}


def speakers(run: Run) -> list[str]:
    """Who moved on the way to the first episode's best leaf."""
    record = run.episodes[0]
    return [turn.agent for node in record.path(record.best) for turn in node.turns]


def test_goal_and_prompt_override_those_of_the_task(base: Mapping[str, Any]) -> None:
    agents = {"writer": {"goal": "be short"}, "reviewer": {"goal": "be kind"}}
    config = validate({**base, "task": "closed", "agents": agents})
    assert prompts(config) == {
        "writer": "You write.\n\nYour goal: be short",
        "reviewer": "You are the reviewer of a team. be kind",
    }
    task = prepare(config).task
    assert [spec.goal for spec in task.agents] == ["be short", "be kind"]  # the judge reads them
    assert [spec.goal for spec in type(task).agents] == ["write", "review"]
    own = validate({**base, "agents": {"writer": {"goal": "x", "system_prompt": "Only this."}}})
    assert prompts(own)["writer"] == "Only this."
    assert prompts(validate(base))["writer"] == "You write."


def test_the_shipped_team_has_goals_and_prompts_of_its_own() -> None:
    file = Path(__file__).parents[2] / "configs" / "agents.yaml"
    written = read_config_file(file)["agents"]
    config = validate({**read_config_file(file), "provider": {"name": "fake"}})
    usual = prompts(validate({"task": config.task, "provider": {"name": "fake"}}))
    assert usual.keys() == written.keys()
    for role, prompt in prompts(config).items():
        assert prompt == written[role]["system_prompt"] != usual[role]
    assert [spec.goal for spec in prepare(config).task.agents] == [
        written[role]["goal"] for role in usual
    ]


def test_a_list_is_a_mapping_by_role(base: Mapping[str, Any]) -> None:
    listed = validate({**base, "agents": [{"role": "reviewer", "model": "b", "max_tokens": 9}]})
    assert listed.agents["reviewer"].model == "b"
    plan = prepare(validate({**listed.model_dump(by_alias=True), "task": "closed"}))
    assert [spec.role for spec in plan.task.agents] == ["writer", "reviewer"]
    assert plan.backend.team(plan.task)["reviewer"].model == "b"


def test_a_list_is_the_team_of_a_task_with_open_roles(
    base: Mapping[str, Any], tmp_path: Path
) -> None:
    agents = [
        {"role": "planner", "goal": "plan"},
        {"role": "writer", "model": "fake-2"},
        {"role": "critic", "system_prompt": "You find faults."},
    ]
    run = orchestry.train(validate({**base, "agents": agents}), tmp_path / "run")
    assert speakers(run) == ["planner", "writer", "critic"]
    assert {row.agent for row in run.summary.usage} == {"planner", "writer", "critic"}
    config = validate(read_config_file(tmp_path / "run" / "config.yaml"))
    assert config.team == ("planner", "writer", "critic")
    assert prompts(config) == {
        "planner": "You are the planner of a team. plan",
        "writer": "You write.",
        "critic": "You find faults.",
    }
    more = resume(run.folder, {"episodes": 3})
    assert (len(more.episodes), speakers(more)) == (3, ["planner", "writer", "critic"])
    held_out = orchestry.evaluate(more)
    assert speakers(held_out) == ["planner", "writer", "critic"]


def test_a_mapping_leaves_the_team_of_open_roles_as_it_is(base: Mapping[str, Any]) -> None:
    config = validate({**base, "agents": {"writer": {"model": "fake-2"}}})
    assert list(prompts(config)) == ["writer", "reviewer"]
    config = validate({**base, "agents": {"planner": {"goal": "plan"}}})
    with pytest.raises(ConfigError, match=r"unknown agent .* 'planner'.* make agents a list"):
        prepare(config)
    with pytest.raises(ConfigError, match=r"unknown agent (?!.*list)"):
        prepare(config.model_copy(update={"task": "closed"}))


def test_an_empty_list_of_agents_is_refused(base: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'agents' is an empty list"):
        validate({**base, "agents": []})
    with pytest.raises(ConfigError, match="'agents' is an empty list"):
        resolve(sets=["agents=[]"])


def test_one_model_alone_plays_for_a_team_from_a_list(base: Mapping[str, Any]) -> None:
    agents = [{"role": "planner", "goal": "plan"}, {"role": "coder", "goal": "code"}]
    config = validate({**base, "baseline": "fixed", "agents": agents})
    first = prepare(config)
    (text,) = prompts(config).values()
    assert "You are the planner of a team. plan" in text
    assert "You are the coder of a team. code" in text
    assert prepare(validate(first.config.model_dump(by_alias=True))).config == first.config


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ({"writter": {"model": "x"}}, "'writter'.*did you mean 'writer'.*writer, reviewer"),
        ([{"role": "tester"}], "'tester'.*writer, reviewer"),
        ([{"goal": "g"}], r"'agents.0' has no role.*\{role: coder\}"),
        ([{"role": "a"}, {"role": "a"}], "two agents of role 'a'"),
        ({"writer": {"role": "coder"}}, r"agents.writer.role' is 'coder'.*\[\{role: coder\}\]"),
        ([{"role": "writer", "gaol": "g"}], "did you mean 'agents.writer.goal'"),
    ],
)
def test_what_no_team_can_be_made_of_is_an_error(
    base: Mapping[str, Any], agents: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare(validate({**base, "task": "closed", "agents": agents}))


def test_a_setting_adds_to_a_list_of_a_file_and_a_list_replaces_what_was_before(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("agents: [{role: coder, goal: code}, {role: tester}]\n")
    two.write_text("agents: [{role: poet}]\n")
    config = resolve([one], ["agents.coder.model=m"])
    assert config.team == ("coder", "tester")
    assert (config.agents["coder"].goal, config.agents["coder"].model) == ("code", "m")
    assert resolve([one, two]).team == ("poet",)
    kept = validate(merge(config.plain(), {"episodes": 1}))
    assert kept.team == config.team
