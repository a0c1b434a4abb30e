"""BaseTask and TeamTask, the classes that users extend. Pure: same arguments, same result.

A task is a Dec-POMDP: each agent sees its own observation of a state, agents act one after another
or jointly, and all share one reward.
"""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic

from pydantic import ValidationError

from orchestry.core.config import MAX_RUBRIC
from orchestry.core.errors import ConfigError, LeftOut, TaskError, reason, unknown
from orchestry.core.files import json_lines
from orchestry.core.types import AgentSpec, Frozen, Part, Problem, Score, Split, StateT, Tools


class BaseTask(ABC, Generic[StateT]):
    """A task and its reward, written once for every backend.

    State is frozen and hashable, with tuples inside, and carries its problem. `weights` names the
    parts of the reward; a run's config may change the numbers, never the names. `options_type` is
    a frozen pydantic model of the task's own settings, if it has any; a run's config fills it.
    """

    name: ClassVar[str]
    agents: ClassVar[tuple[AgentSpec, ...]]
    """The team. A run's config may give an instance other goals, prompts or roles."""
    weights: ClassVar[Mapping[str, float]] = {"quality": 1.0}
    options_type: ClassVar[type[Frozen]] = Frozen
    solved: ClassVar[str | None] = None
    """The tag of a trajectory that solved its problem, for pass@k; None if the task has no clear
    "solved"."""
    schemes: ClassVar[tuple[str, ...]] = ()
    """The known ways in which a team can work together, which the tags `scheme_NAME` name."""
    judged: ClassVar[bool] = True
    """Whether the central judge is used by default (`judge.enabled` overrides this)."""
    rubric: ClassVar[str] = ""
    """What good work is in this task: the judge reads it beside its general criteria, the agents
    don't (`judge.rubric` replaces it). At most 10,000 characters; '': none."""
    team_parts: ClassVar[tuple[str, ...]] = ()
    """The parts of the reward that only a team can earn: baseline `single` is scored without them.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        for part in weights or {}:
            if part not in self.weights:
                raise ConfigError(unknown(f"reward part of {self.name}", part, [*self.weights]))
        self.part_weights: dict[str, float] = {**self.weights, **(weights or {})}
        if weights and not any(self.part_weights.values()):
            raise ConfigError(f"all weights of {self.name} are zero: give one of its parts some")
        self.options: Any = self._settled(options or {})
        vars(self)["agents"] = self.asked_agents()

    def asked_agents(self) -> tuple[AgentSpec, ...]:
        """The agents that this instance's options ask for; without an override, the class's."""
        return self.agents

    @abstractmethod
    def problems(self, split: Split) -> Sequence[Problem]:
        """The instances of a split, in a stable order, with ids that never move between splits."""

    @abstractmethod
    def reset(self, problem: Problem, seed: int) -> StateT:
        """The first state of an episode."""

    @abstractmethod
    def to_act(self, state: StateT) -> tuple[str, ...]:
        """The roles that move now: () when done, several for a joint action."""

    @abstractmethod
    def observe(self, state: StateT, agent: str) -> str:
        """That agent's observation."""

    @abstractmethod
    def step(self, state: StateT, actions: Mapping[str, str]) -> StateT:
        """The next state."""

    @abstractmethod
    async def evaluate(self, state: StateT, tools: Tools) -> Score:
        """Scores the work so far; defined for any reachable state, total in [0, 1]."""

    def told(self, state: StateT, score: Score) -> StateT:
        """The state after its agents were told its score; unchanged if they may not know.

        `score` is evaluate's result, with at most 2,000 characters of feedback. It is told before
        agents act in the state, so observe and step may use it; to_act and evaluate must not depend
        on it.
        """
        return state

    def single(self) -> AgentSpec | None:
        """Baseline `single`: one agent that solves a problem alone; its role is always `alone`.
        None: its prompt is made of the agents' goals, and it has the tools of all. Raises
        ConfigError, saying why, if nobody can do the task alone."""
        return None

    def observe_single(self, problem: Problem) -> str:
        """What that agent is asked."""
        return problem.prompt

    def evaluate_single(self, state: StateT, answer: str, tools: Tools) -> Awaitable[Score]:
        """Scores that agent's answer. In `state`, a final one, each agent has said all of it, or
        its own part if the answer has a heading `## ROLE` for every agent."""
        return self.evaluate(state, tools)

    def fixed(self) -> AgentSpec | None:
        """Baseline `fixed`: one agent that writes every agent's part, each under its heading. None:
        it has the prompts and tools of all."""
        return None

    def observe_fixed(self, problem: Problem) -> str:
        """What that agent is asked. '': what each agent is told in the first state, under its
        heading."""
        return ""

    def delivered(self, state: StateT) -> str:
        """What the team hands over in a final state, for `orchestry ask`. '': the last stage's
        texts. To be overridden where the work is put together from several texts."""
        return ""

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        """An answer for every agent that must score 1.0, or None; `tasks check` plays it."""
        return None

    async def unfit(self, problem: Problem, tools: Tools) -> str:
        """Why no answer can solve a problem, if its own solution fails here; '' otherwise. A run
        asks once, when it begins, and names such problems."""
        return ""

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """Answers of different quality, each with a text for every agent, the best first.

        `judge check` scores them by `evaluate` and asks the judge about them. Without an override:
        the gold, half of it, another problem's, and nothing; () if there is no gold.
        """
        gold = self.gold(problem)
        if gold is None:
            return ()
        others = (self.gold(other) for other in self.problems(problem.split) if other != problem)
        half = {agent: text[: len(text) // 2] for agent, text in gold.items()}
        spoilt = [half, next(others, None) or {}, dict.fromkeys(gold, "")]
        return [gold, *(answer for answer in spoilt if answer)]

    def _settled(self, options: Mapping[str, Any]) -> Any:
        """The options, an instance of `options_type`. Raises ConfigError for a wrong one."""
        for name in options:
            if name not in self.options_type.model_fields:
                known = [*self.options_type.model_fields]
                if not known:
                    raise ConfigError(f"task {self.name} has no options, but options.{name} is set")
                raise ConfigError(unknown(f"option of task {self.name}", name, known))
        try:
            return self.options_type.model_validate(options)
        except ValidationError as error:
            raise ConfigError(f"options of task {self.name}: {reason(error)}") from None

    def score(self, *, feedback: str = "", tags: Sequence[str] = (), **values: float) -> Score:
        """A Score from part values in [0, 1], with the run's weights.

        Raises TaskError for a part that `weights` does not name.
        """
        for name in values:
            if name not in self.part_weights:
                raise TaskError(unknown(f"reward part of {self.name}", name, [*self.weights]))
        parts = tuple(
            Part(name=name, value=float(values.get(name, 0.0)), weight=weight)
            for name, weight in self.part_weights.items()
        )
        return Score(parts=parts, feedback=feedback, tags=tuple(tags))


def rubric_fault(task: BaseTask[Any]) -> str:
    """What is wrong with a task's rubric; '' if nothing is."""
    rubric: object = task.rubric
    if not isinstance(rubric, str):
        return f"rubric is a {type(rubric).__name__}: make it a text"
    if rubric and not rubric.strip():
        return "rubric is blank: write what good work is, or leave it out"
    if len(rubric) > MAX_RUBRIC:
        return f"rubric has {len(rubric):,} characters: shorten it to {MAX_RUBRIC:,}"
    return ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The state of a TeamTask: the messages so far, and how often each agent may speak."""

    problem: Problem
    said: tuple[tuple[str, str], ...] = ()

    def by(self, agent: str) -> tuple[str, ...]:
        """All that one agent said, oldest first."""
        return tuple(text for who, text in self.said if who == agent)

    def last(self, agent: str) -> str:
        """The agent's last message, or ''."""
        texts = self.by(agent)
        return texts[-1] if texts else ""


class TeamTask(BaseTask[Transcript]):
    """Agents speak in order for `rounds` rounds: write problems, observe and evaluate."""

    rounds: ClassVar[int] = 1
    open_roles: ClassVar[bool] = False
    """Whether a config's list of agents replaces the team, new roles included, in that order."""

    def reset(self, problem: Problem, seed: int) -> Transcript:
        return Transcript(problem)

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        turn = len(state.said)
        if turn >= self.rounds * len(self.agents):
            return ()
        return (self.agents[turn % len(self.agents)].role,)

    def step(self, state: Transcript, actions: Mapping[str, str]) -> Transcript:
        return replace(state, said=(*state.said, *actions.items()))

    def observe(self, state: Transcript, agent: str) -> str:
        said = "\n\n".join(f"{who} wrote:\n{text}" for who, text in state.said)
        return f"{state.problem.prompt}\n\n{said}".strip()

    def observe_single(self, problem: Problem) -> str:
        """What the agent is told who speaks first."""
        first = self.reset(problem, 0)
        return self.observe(first, self.to_act(first)[0])


def read_problems(path: Path | str, split: Split) -> tuple[Problem, ...]:
    """The problems of one split from a JSON-lines file beside its task.

    Blank lines are skipped, and so is one with half a surrogate pair, which a warning names. Raises
    TaskError naming an unreadable file, an invalid line, or two lines with the same id (in any
    splits).
    """
    return tuple(problem for problem in every_problem(Path(path)) if problem.split == split)


def every_problem(path: Path) -> Iterator[Problem]:
    """Those of all splits, in the file's order. Raises as `read_problems`."""
    lines = dict[str, int]()
    for number, line in json_lines(_read(path)):
        where = f"{path}, line {number}"
        try:
            problem = Problem.model_validate(row := json.loads(line))
        except UnicodeDecodeError:
            raise TaskError(f"{where} is not UTF-8: save the file as UTF-8") from None
        except ValueError as error:
            raise TaskError(
                f"{where} is not a problem ({reason(error)}): write a JSON object "
                "with id, prompt, and where needed data and split"
            ) from None
        if not writable(where, row):
            continue
        if (first := lines.setdefault(problem.id, number)) != number:
            raise TaskError(
                f"{path}, lines {first} and {number} have the same id '{problem.id}': give each "
                "problem an id of its own"
            )
        yield problem


def writable(where: str, row: Any) -> bool:
    """Whether UTF-8 can hold what was read from JSON, which may have half a surrogate pair. If not,
    the row is to be left out: a warning names it, once per process."""
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        _warn(
            f"{where} is left out, since it holds half a surrogate pair, "
            f"\\u{ord(error.object[error.start]):04x}: correct that character"
        )
        return False
    return True


@lru_cache(maxsize=1000)  # a file is read once per split
def _warn(text: str) -> None:
    warnings.warn(LeftOut(text), stacklevel=1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskError(
            f"{path} can't be read ({error.strerror or error}): put the task's problems there, one "
            "JSON object per line"
        ) from None
