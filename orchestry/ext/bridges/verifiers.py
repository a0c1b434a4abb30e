"""Environments of the package verifiers as tasks, and tasks as its environments (written for
verifiers 0.4, its v1 interfaces).

verifiers plays an episode by programs that call models ("harnesses"), so a task made of one is an
AgentTask. The other way, each move of our agents is a run of one of its agents.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, TaskError, reason, unknown
from orchestry.core.types import Problem, Score, Split
from orchestry.ext.bridges.rewards import Earning
from orchestry.task.datasets import split_of
from orchestry.task.programs.agent_task import AgentTask, Conversation, Team
from orchestry.task.registry import load_task

CHAT = "orchestry_chat"
"""The name of our chat loop among verifiers' harnesses."""
_THEIRS = ("null", "bash")
"""verifiers' own harnesses that ours stands in for."""
LOCAL = {"type": "subprocess"}
"""verifiers' runtime on this machine, without a sandbox."""


class VerifiersTask(Earning[Conversation], AgentTask):
    """Write `name`, `agents` with the roles that the environment has, and `environment`.

    A problem is one of the environment's tasks, a rollout one of its episodes, the reward what its
    traces got.
    """

    environment: ClassVar[str | Mapping[str, Any]]
    """The id of an installed taskset; or what verifiers' config files have in `[env]`: `taskset`
    with `id` and settings, `id` of an environment over it, settings of agents by role."""
    limit: ClassVar[int | None] = None
    """At most so many of its tasks; needed where they have no end."""

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(weights, options)
        self._tasks: dict[str, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def problems(self, split: Split) -> Sequence[Problem]:
        """Its tasks, in splits by a hash of their ids."""
        if not self._tasks:
            self._tasks = self._read()
        found = ((name, split_of(name), task) for name, task in self._tasks.items())
        return [
            Problem(id=name, prompt=task.data.prompt_text or name, split=own)
            for name, own, task in found
            if own == split
        ]

    @asynccontextmanager
    async def serving(self, *, structured: bool = True) -> AsyncIterator[None]:
        """See AgentTask. Episodes are played in the event loop of the run, since verifiers expects
        one loop for all."""
        async with super().serving(structured=structured):
            self._loop = asyncio.get_running_loop()
            yield

    def play(self, problem: Problem, team: Team) -> Score:
        assert self._loop is not None, "serving sets it"
        episode = asyncio.run_coroutine_threadsafe(self._episode(problem, team), self._loop)
        team.at_end(episode.cancel)
        return self._scored(episode.result())

    async def _episode(self, problem: Problem, team: Team) -> Any:
        """Plays one. Raises TaskError if it fails."""
        vf = _verifiers(self.name)
        variable = f"ORCHESTRY_API_KEY_{secrets.token_hex(8)}"  # verifiers reads keys from there
        client = vf.EvalClientConfig(base_url=team.url, api_key_var=variable)
        os.environ[variable] = team.key
        try:
            env = self._made()
            async with env.serving():
                task = self._tasks[problem.id]
                episode = await env.run_episode(task, vf.ModelContext("", client))
        finally:
            del os.environ[variable]
        if not env.complete(episode):
            raise TaskError(f"task {self.name}: problem {problem.id} failed: {_why(episode)}")
        return episode

    def _scored(self, episode: Any) -> Score:
        earned = {role: fmean(t.reward for t in ts) for role, ts in episode.by_agent.items()}
        counted = {trace.agent.name for trace in episode.traces if trace.agent.trainable}
        return self.earned(
            earned, counted or earned, feedback="\n".join(map(_told, episode.traces))
        )

    def _read(self) -> dict[str, Any]:
        """Its tasks by their ids. Raises TaskError if the environment has other agents."""
        env = self._made()
        roles, own = [spec.role for spec in self.agents], [*_roles(env.config)]
        if sorted(roles) != sorted(own):
            raise TaskError(
                f"task {self.name}: its agents are {', '.join(roles)}, and those of the "
                f"environment {', '.join(own)}: name the same"
            )
        if self.earner not in ("", *roles):
            raise TaskError(unknown(f"earner of task {self.name}", self.earner, roles))
        if self.limit is None and not env.taskset.bounded:
            raise TaskError(
                f"task {self.name}: the tasks of its environment have no end: set limit"
            )
        taskset = env.taskset if self.limit is None else env.taskset.take(self.limit)
        found: dict[str, Any] = {}
        for task in taskset:
            name = task.data.id or task.data.name or str(task.data.idx)
            found[f"{name}-{task.data.idx}" if name in found else name] = task
        return found

    def _made(self) -> Any:
        """The environment, each of whose agents asks for itself. Raises TaskError if it can't be
        made."""
        vf = _verifiers(self.name)
        asked = {"taskset": {"id": self.environment}}
        given: Any = asked if isinstance(self.environment, str) else self.environment
        try:
            config = vf.resolve_env_config(dict(given))
            agents = {role: _seat(role, given.get(role, {}), config) for role in _roles(config)}
            return vf.load_environment(vf.resolve_env_config({**given, **agents}))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise TaskError(
                f"task {self.name}: verifiers can't make its environment {given} "
                f"({reason(error)}): correct `environment`, or install its package"
            ) from None


def environment(
    task: str,
    *,
    task_path: Sequence[Path] = (),
    options: Mapping[str, Any] | None = None,
    weights: Mapping[str, float] | None = None,
    allow_unsafe_code: bool = False,
) -> tuple[type, type]:
    """A task as a taskset and an environment of verifiers, for a module that exports both by
    `__all__`; the module's name is then their id.

    The arguments are those of a run. Raises ConfigError if verifiers is missing, for an unknown
    task, and for one whose agents have tools or live in a program.
    """
    _verifiers(task)
    from orchestry.ext.bridges.verifiers_env import classes

    return classes(load_task(task, task_path, weights, options), allow_unsafe_code)


def _verifiers(task: str) -> Any:
    """verifiers.v1, which then knows our chat loop. Raises ConfigError if it is missing."""
    try:
        import verifiers.v1 as vf

        from orchestry.ext.bridges import verifiers_chat
    except ImportError as error:
        raise ConfigError(
            f"task {task} needs verifiers, which can't be imported here ({reason(error)}): "
            f"{install('verifiers')}"
        ) from None
    sys.modules.setdefault(CHAT, verifiers_chat)  # it finds a harness by a name without dots
    return vf


def _roles(config: Any) -> Mapping[str, Any]:
    from verifiers.v1.configs.agent import agent_config_fields

    return agent_config_fields(config)  # type: ignore[no-any-return]


def _seat(role: str, given: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """An agent's settings: it asks for its role, in our chat loop on this machine unless the
    environment brings a harness, or the user says how it is played."""
    asked = {**given, "model": role, "client": None}
    own = {"harness", "runtime"} & {*given}
    if not own and config.agent_harnesses()[role].id in _THEIRS:
        asked |= {"harness": {"id": CHAT}, "runtime": LOCAL}
    return asked


def _why(episode: Any) -> str:
    """The last error of an episode or of one of its traces."""
    errors = [*(e for trace in episode.traces for e in trace.errors), *episode.errors]
    return f"{errors[-1].type}: {errors[-1].message}" if errors else "verifiers does not say why"


def _told(trace: Any) -> str:
    """A trace's rewards and metrics, as feedback."""
    rewards = {name: one.value for name, one in trace.rewards.items() if one is not None}
    shown = [f"{name} {value:g}" for name, value in {**rewards, **trace.metrics}.items()]
    return f"{trace.agent.name}: {', '.join(shown) or 'nothing'}"
