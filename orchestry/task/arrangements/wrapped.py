"""A task whose agents act in another order, or see something else; problems and reward stay."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestry.core.types import AgentSpec, Problem, Score, Split, Tools
from orchestry.task.base import BaseTask
from orchestry.task.guard import Play, evaluated


@dataclass(frozen=True, slots=True)
class Gathered:
    """The task's own state, and the answers that it has not been given yet, oldest first."""

    problem: Problem
    inner: Any
    answers: tuple[tuple[str, str], ...] = ()

    def by(self, agent: str) -> str:
        """What the agent answered last, or '' where it has not."""
        return next((text for who, text in reversed(self.answers) if who == agent), "")

    def shown(self, besides: str) -> str:
        """The answers of all others, as one reads them."""
        return "\n\n".join(f"{who} wrote:\n{text}" for who, text in self.answers if who != besides)


class Wrapped(BaseTask[Gathered]):
    """Plays a task through answers that are gathered first; what they are worth is the task's word.

    While nothing was given to the task, a state is worth what the task's own state is.
    """

    def __init__(self, task: BaseTask[Any]) -> None:
        # Its options and weights were settled by the task; what a class says, an instance may too.
        vars(self).update(
            task=task,
            name=task.name,
            agents=task.agents,
            weights=task.weights,
            solved=task.solved,
            judged=task.judged,
            part_weights=task.part_weights,
            options=task.options,
        )

    task: BaseTask[Any]

    def problems(self, split: Split) -> Sequence[Problem]:
        return self.task.problems(split)

    def reset(self, problem: Problem, seed: int) -> Gathered:
        return Gathered(problem, self.task.reset(problem, seed))

    @abstractmethod
    def to_act(self, state: Gathered) -> tuple[str, ...]: ...

    def observe(self, state: Gathered, agent: str) -> str:
        return self.task.observe(state.inner, agent)

    @abstractmethod
    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered: ...

    async def evaluate(self, state: Gathered, tools: Tools) -> Score:
        return await evaluated(self.task, state.problem, state.inner, tools)

    def over(self, state: Gathered) -> bool:
        """Whether nobody acts any more in the task's own state."""
        return not self.task.to_act(state.inner)


def played(task: BaseTask[Any], state: Gathered, answers: Mapping[str, str]) -> Gathered:
    """Where the task comes to if each agent gives its one answer whenever its turn comes.

    Raises as Play does.
    """
    play = Play(task, state.problem, state.inner, lambda agent: answers.get(agent, ""))
    for _ in play:
        pass
    return replace(state, inner=play.state)


def roles(agents: Sequence[AgentSpec]) -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(spec.role for spec in agents)
