"""A task as a config asks for it: loaded, with its team, its arrangement and its problems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.core.config import MAX_EPISODES, RunConfig
from orchestry.core.digests import folder_digest, with_whole
from orchestry.core.errors import ConfigError, TaskError, unknown
from orchestry.core.types import AgentSpec, Problem
from orchestry.task.arrangements import ALONE, ONE_MODEL, arranged, check_first_state
from orchestry.task.base import BaseTask, TeamTask, rubric_fault, writable
from orchestry.task.given import given
from orchestry.task.guard import count_stages, task_boundary
from orchestry.task.registry import bundled, folder_of, load_task
from orchestry.task.seats import Opener, seated
from orchestry.task.thinking import check_bonus, thoughtful


@dataclass(frozen=True, slots=True)
class Setup:
    """A task that can be played, and the config that fits it."""

    config: RunConfig
    task: BaseTask[Any]
    problems: Sequence[Problem]
    digests: Mapping[str, str]
    """Of the task's files: see task_digests; and of those that its options name."""


def set_up(
    config: RunConfig, note: Callable[[str], None], policy: Opener, held_out: bool = False
) -> Setup:
    """Loads the config's task, gives it its team, and plays a first problem to its end unscored.

    `policy` opens what other runs learned, for seats that it plays. `held_out`: at most one episode
    per problem. Raises ConfigError or TaskError.
    """
    task = load_task(config.task, config.task_path, config.weights, config.options, warn=note)
    if fault := rubric_fault(task):
        raise TaskError(f"task {task.name}: its {fault}")
    config = _with_shelf(config, task)
    digests = {**task_digests(task), **option_digests(task, config.options)}
    _give_agents(task, config)
    config, task = arranged(config, seated(config, task, policy))
    task = thoughtful(config, task)
    problems = _problems(task, config) if config.problem is None else (given(task, config),)
    if config.passes is not None:
        config = _counted(config, len(problems))
    if held_out:
        config = config.model_copy(update={"episodes": min(config.episodes, len(problems))})
    count_stages(task, problems[0])  # a task that never ends would spend without end
    check_first_state(config, task, problems[0])
    if config.baseline is None:
        check_bonus(task, problems[0])
    return Setup(config, task, problems, digests)


def playable(config: RunConfig, note: Callable[[str], None], policy: Opener) -> BaseTask[Any]:
    """The config's task as it is played: with its options, team and arrangement. Raises as
    `set_up`."""
    task = load_task(config.task, config.task_path, config.weights, config.options, warn=note)
    _give_agents(task, config)
    return thoughtful(*arranged(config, seated(config, task, policy)))


def task_digests(task: BaseTask[Any]) -> dict[str, str]:
    """Of the task's code and data, as `task`, and of each of these files, as `task/FILE`."""
    folder = folder_of(task)
    if folder is None:
        file = Path(sys.modules[type(task).__module__].__file__ or "")
        folder, files = file.parent, [file]
    else:
        files = list(_files(folder))
    return with_whole(
        "task", "/", {str(one.relative_to(folder)): folder_digest(folder, [one]) for one in files}
    )


def option_files(options: Any, given: Mapping[str, Any]) -> dict[str, Path]:
    """The user's own files and folders that a task's options name, by option. One that may be a
    name or a file, such as a bank, is a file if it has a suffix and is there."""
    found = dict[str, Path]()
    for name, value in given.items():
        path = Path(value) if isinstance(value, str) and value else None
        known = isinstance(getattr(options, name, None), Path)
        with suppress(OSError, RuntimeError, ValueError):  # a text that can be no path
            if path and (known or (path.suffix and path.expanduser().is_file())):
                found[name] = path.expanduser()
    return found


def option_digests(task: BaseTask[Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Of each of these that is there, as `options.NAME`; others the task itself refuses."""
    found = dict[str, str]()
    for name, path in option_files(task.options, given).items():
        if path.is_dir():
            found[f"options.{name}"] = folder_digest(path, _files(path))
        elif path.is_file():
            found[f"options.{name}"] = folder_digest(path.parent, [path])
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Code and data: no documents, caches or hidden files."""
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith((".", "__pycache__")) for part in parts)
        if path.is_file() and not hidden and path.suffix != ".md":
            yield path


def _with_shelf(config: RunConfig, task: BaseTask[Any]) -> RunConfig:
    """The config with ./tasks in its task path if the task lies there: a resume may come from
    another folder."""
    home = folder_of(task)
    known = (bundled("tasks"), *config.task_path)
    if home is None or home.parent in [path.resolve() for path in known]:
        return config
    return config.model_copy(update={"task_path": (*config.task_path, home.parent)})


def _give_agents(task: BaseTask[Any], config: RunConfig) -> None:
    """Gives the task the goals and prompts that the config has for its agents; where the task has
    `open_roles`, the config's list of agents is its team. Raises ConfigError for an unknown role.
    """
    known, hint = {spec.role: spec for spec in task.agents}, ""
    if isinstance(task, TeamTask) and task.open_roles:
        hint = "; for new roles, make agents a list of the whole team, such as [{role: coder}]"
        if config.team:
            known = {role: known.get(role, AgentSpec(role=role)) for role in config.team}
    for role in config.agents:
        alone = config.baseline in ONE_MODEL and role == ALONE
        if role not in known and not alone:
            raise ConfigError(unknown(f"agent of task {task.name}", role, [*known]) + hint)
    for role, own in config.agents.items():
        if own.max_calls is not None and role in known and not known[role].tools:
            raise ConfigError(
                f"agents.{role}.max_calls limits calls of tools, and {role} of task {task.name} "
                "has none: leave it out"
            )
    team = tuple(
        spec.model_copy(update=config.agents[role].said) if role in config.agents else spec
        for role, spec in known.items()
    )
    if team != tuple(task.agents):
        vars(task)["agents"] = team


def _counted(config: RunConfig, problems: int) -> RunConfig:
    """The config with its passes over so many problems as a number of episodes."""
    episodes = (config.passes or 0) * problems
    if episodes > MAX_EPISODES:
        raise ConfigError(
            f"passes={config.passes} over {problems} {config.split} problems of task {config.task} "
            f"is {episodes:,} episodes, and a run has at most {MAX_EPISODES:,}: lower passes"
        )
    return config.model_copy(update={"episodes": episodes, "passes": None})


def _problems(task: BaseTask[Any], config: RunConfig) -> tuple[Problem, ...]:
    """The problems of the config's split, of which there is at least one, and no two with one id:
    comparisons pair problems by their ids."""
    with task_boundary(task, "problems"):
        found = task.problems(config.split)
    said = f"task {task.name}: problem "
    problems = tuple(p for p in found if writable(f"{said}{p.id!a}", (p.id, p.prompt, p.data)))
    if not problems:
        raise ConfigError(
            f"task {config.task} has no problems in split '{config.split}': add some, or choose "
            "another with --set split=..."
        )
    places = dict[str, int]()
    for place, problem in enumerate(problems):
        if (first := places.setdefault(problem.id, place)) != place:
            raise TaskError(
                f"task {config.task}: problems {first} and {place} of split '{config.split}' have "
                f"the same id '{problem.id}': give each problem its own id"
            )
    return problems
