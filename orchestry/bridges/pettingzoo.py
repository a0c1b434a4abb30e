"""PettingZoo's games as tasks, AEC and Parallel: their agents are language models.

Such a game can't be copied, so a state is its problem and what was done so far, and the game is
played again from there where it is needed (written for PettingZoo 1.27).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, ClassVar

from orchestry.core.errors import TaskError, reason
from orchestry.core.types import Problem, Score, Split, Tools
from orchestry.task.base import BaseTask

GAMES, STATES = 64, 4096
"""Most games, and most states, that are kept."""
ILLEGAL = "illegal"
"""The tag of a play that ended by an answer which is no action."""


@dataclass(frozen=True, slots=True)
class Played:
    """A state: what the agents answered, stage by stage."""

    problem: Problem
    moves: tuple[tuple[tuple[str, str], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class _View:
    """What is to be known of a state."""

    acting: tuple[str, ...]
    told: Mapping[str, str]
    returns: Mapping[str, float]
    illegal: str = ""
    """Who gave an answer that is no action, and why it is none."""


@dataclass(slots=True)
class _Game:
    """A live game, somewhere in a play."""

    env: Any
    parallel: bool
    seen: dict[str, Any] = field(default_factory=dict)
    """Of a Parallel game, what its agents see."""
    returns: dict[str, float] = field(default_factory=dict)


class PettingZooTask(BaseTask[Played]):
    """Write `name`, `agents` with the roles that the game has, `make`, `render` and `parse`.

    A problem is a seed of the game; equal seeds and actions must give equal games, which is checked
    once per problem.
    """

    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    """The least and greatest return; the reward is where it lies between."""
    earner: ClassVar[str] = ""
    """The role whose return counts, for games against each other; '': the mean of all."""
    max_stages: ClassVar[int] = 200
    """Then the game is cut off."""
    seeds: ClassVar[Mapping[Split, Sequence[int]]] = {
        "train": range(100),
        "dev": range(1000, 1020),
        "test": range(2000, 2020),
    }

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(weights, options)
        self._lock = Lock()
        self._games = OrderedDict[Played, _Game]()
        self._views = OrderedDict[Played, _View]()
        self._checked = set[str]()

    @abstractmethod
    def make(self) -> Any:
        """A new game: an AECEnv or a ParallelEnv."""

    @abstractmethod
    def render(self, observation: Any, agent: str) -> str:
        """What an agent is told of what it observes, with what it may answer."""

    @abstractmethod
    def parse(self, text: str, observation: Any, agent: str) -> Any:
        """The action that an answer means. Raises ValueError if it means none: the game then ends,
        and earns `low`."""

    def problems(self, split: Split) -> Sequence[Problem]:
        return [
            Problem(id=f"{split}-{seed}", prompt=f"seed {seed}", data={"seed": seed}, split=split)
            for seed in self.seeds[split]
        ]

    def reset(self, problem: Problem, seed: int) -> Played:
        return Played(problem)

    def to_act(self, state: Played) -> tuple[str, ...]:
        return self._view(state).acting if len(state.moves) < self.max_stages else ()

    def observe(self, state: Played, agent: str) -> str:
        return self._view(state).told[agent]

    def step(self, state: Played, actions: Mapping[str, str]) -> Played:
        said = tuple((agent, actions[agent]) for agent in self._view(state).acting)
        return replace(state, moves=(*state.moves, said))

    async def evaluate(self, state: Played, tools: Tools) -> Score:
        view = self._view(state)
        self._check(state, view)
        found = [view.returns.get(spec.role, 0.0) for spec in self.agents]
        earned = view.returns.get(self.earner, 0.0) if self.earner else sum(found) / len(found)
        share = min(1.0, max(0.0, (earned - self.low) / (self.high - self.low)))
        parts: Any = {next(iter(self.part_weights)): 0.0 if view.illegal else share}
        tags = [ILLEGAL] if view.illegal else []
        score = self.score(**parts, tags=tags)
        return score.model_copy(update={"returns": tuple(found), "feedback": view.illegal})

    def _check(self, state: Played, view: _View) -> None:
        """Plays the problem's first whole play again. Raises TaskError if it comes out
        otherwise."""
        if view.acting or view.illegal or state.problem.id in self._checked:
            return
        self._checked.add(state.problem.id)
        with self._lock:
            again = self._seen(self._replayed(state, from_start=True), state)
        if again != view:
            raise TaskError(
                f"task {self.name}: the game of seed {state.problem.data['seed']} came out "
                "otherwise when it was played again: let it draw from the seed of reset alone"
            )

    def _view(self, state: Played) -> _View:
        with self._lock:
            if state not in self._views:
                illegal = self._illegal(state)
                game = None if illegal else self._replayed(state)
                self._views[state] = self._seen(game, state, illegal)
            self._views.move_to_end(state)
            while len(self._views) > STATES:
                self._views.popitem(last=False)
            return self._views[state]

    def _illegal(self, state: Played) -> str:
        """Of the last answers, which of them is no action."""
        if not state.moves:
            return ""
        before = self._games.get(replace(state, moves=state.moves[:-1]))
        game = before or self._replayed(replace(state, moves=state.moves[:-1]))
        for agent, text in state.moves[-1]:
            try:
                self.parse(text, _observed(game, agent), agent)
            except ValueError as error:
                return f"{agent}: {reason(error)}"
        return ""

    def _replayed(self, state: Played, from_start: bool = False) -> _Game:
        """A live game in that state: that of the state before, if it is there, else a new one."""
        if not from_start and state in self._games:
            return self._games[state]
        before = replace(state, moves=state.moves[:-1])
        if not from_start and state.moves and before in self._games:
            game, left = self._games.pop(before), state.moves[-1:]
        else:
            game, left = self._new(state.problem), state.moves
        for said in left:
            self._move(game, said)
        if not from_start:
            self._games[state] = game
            while len(self._games) > GAMES:
                self._games.popitem(last=False)[1].env.close()
        return game

    def _new(self, problem: Problem) -> _Game:
        env = self.make()
        roles = [spec.role for spec in self.agents]
        if sorted(env.possible_agents) != sorted(roles):
            raise TaskError(
                f"task {self.name}: its agents are {', '.join(roles)}, and those of the game "
                f"{', '.join(env.possible_agents)}: name the same"
            )
        game = _Game(env, parallel=not hasattr(env, "agent_iter"))
        first = env.reset(seed=problem.data["seed"])
        if game.parallel:
            game.seen = dict(first[0])
        game.returns = dict.fromkeys(roles, 0.0)
        return game

    def _move(self, game: _Game, said: Sequence[tuple[str, str]]) -> None:
        """One stage of the game."""
        env = game.env
        actions = {a: self.parse(text, _observed(game, a), a) for a, text in said}
        if game.parallel:
            game.seen, rewards, *_ = env.step(actions)
            _earn(game, rewards)
            return
        ((_, action),) = actions.items()
        env.step(action)
        _earn(game, env.rewards)
        while env.agents and _over(env, env.agent_selection):  # they take no more actions
            env.step(None)

    def _seen(self, game: _Game | None, state: Played, illegal: str = "") -> _View:
        if game is None:
            return _View((), {}, dict.fromkeys((s.role for s in self.agents), self.low), illegal)
        env = game.env
        acting = tuple(env.agents if game.parallel else env.agents and (env.agent_selection,))
        told = {agent: self.render(_observed(game, agent), agent) for agent in acting}
        return _View(acting, told, dict(game.returns))


def _observed(game: _Game, agent: str) -> Any:
    return game.seen[agent] if game.parallel else game.env.observe(agent)


def _over(env: Any, agent: str) -> bool:
    return bool(env.terminations[agent] or env.truncations[agent])


def _earn(game: _Game, rewards: Mapping[str, float]) -> None:
    for agent, reward in rewards.items():
        game.returns[agent] += float(reward)
