"""PettingZoo's games as tasks, AEC and Parallel: their agents are language models.

Such a game can't be copied, so a state is its problem and what was done so far, and the game is
played again from there where it is needed (written for PettingZoo 1.27).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from orchestry.core.errors import TaskError, reason
from orchestry.core.types import Problem, Score, Split, Tools
from orchestry.ext.bridges.rewards import Earning

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
    infos: dict[str, Any] = field(default_factory=dict)
    """Of a Parallel game, the `info` beside it."""
    returns: dict[str, float] = field(default_factory=dict)


class PettingZooTask(Earning[Played]):
    """Write `name`, `agents` with the roles that the game has, `make`, `render` and `parse`.

    A problem is a seed of the game; equal seeds and actions must give equal games, which is checked
    once per problem.
    """

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

    def seen(self, observation: Any, info: Mapping[str, Any], agent: str) -> Any:
        """What `render` and `parse` are given as the observation. Override it for a game that puts
        something into `info`, such as an action mask."""
        return observation

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
        return self.earned(
            view.returns,
            view.returns,
            tags=[ILLEGAL] if view.illegal else [],
            feedback=view.illegal,
        )

    def _check(self, state: Played, view: _View) -> None:
        """Plays the problem's first whole play again. Raises TaskError if it comes out
        otherwise."""
        if view.acting or view.illegal or state.problem.id in self._checked:
            return
        self._checked.add(state.problem.id)
        game = self._moved(self._new(state.problem), state.moves)
        again = self._seen(game)
        game.env.close()
        if again != view:
            raise TaskError(
                f"task {self.name}: the game of seed {state.problem.data['seed']} came out "
                "otherwise when it was played again: let it draw from the seed of reset alone"
            )

    def _view(self, state: Played) -> _View:
        if state not in self._views:
            wrong = self._illegal(state)
            self._views[state] = self._lost(wrong) if wrong else self._seen(self._game(state))
        self._views.move_to_end(state)
        while len(self._views) > STATES:
            self._views.popitem(last=False)
        return self._views[state]

    def _illegal(self, state: Played) -> str:
        """Of the last answers, which of them is no action."""
        if not state.moves:
            return ""
        game = self._game(replace(state, moves=state.moves[:-1]))
        for agent, text in state.moves[-1]:
            try:
                self.parse(text, self._observed(game, agent), agent)
            except ValueError as error:
                return f"{agent}: {reason(error)}"
        return ""

    def _game(self, state: Played) -> _Game:
        """A live game in that state: that of the state before, moved on, or else a new one."""
        if state not in self._games:
            before = replace(state, moves=state.moves[:-1])
            if state.moves and before in self._games:
                game = self._moved(self._games.pop(before), state.moves[-1:])
            else:
                game = self._moved(self._new(state.problem), state.moves)
            self._games[state] = game
            while len(self._games) > GAMES:
                self._games.popitem(last=False)[1].env.close()
        return self._games[state]

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
            game.seen, game.infos = map(dict, first)
        game.returns = dict.fromkeys(roles, 0.0)
        return game

    def _moved(self, game: _Game, moves: Sequence[Sequence[tuple[str, str]]]) -> _Game:
        """The same game, some stages on."""
        for said in moves:
            actions = {a: self.parse(text, self._observed(game, a), a) for a, text in said}
            (_all_at_once if game.parallel else _in_turn)(game, actions)
        return game

    def _observed(self, game: _Game, agent: str) -> Any:
        env, infos = game.env, game.infos if game.parallel else game.env.infos
        observation = game.seen[agent] if game.parallel else env.observe(agent)
        return self.seen(observation, infos.get(agent, {}), agent)

    def _seen(self, game: _Game) -> _View:
        env = game.env
        acting = tuple(env.agents if game.parallel else env.agents and (env.agent_selection,))
        told = {agent: self.render(self._observed(game, agent), agent) for agent in acting}
        return _View(acting, told, dict(game.returns))

    def _lost(self, why: str) -> _View:
        """The end after an answer that is no action."""
        return _View((), {}, dict.fromkeys((spec.role for spec in self.agents), self.low), why)


def _all_at_once(game: _Game, actions: Mapping[str, Any]) -> None:
    game.seen, rewards, *_, game.infos = game.env.step(actions)
    _earn(game, rewards)


def _in_turn(game: _Game, actions: Mapping[str, Any]) -> None:
    env = game.env
    env.step(next(iter(actions.values())))
    _earn(game, env.rewards)
    while env.agents and _over(env, env.agent_selection):  # they take no more actions
        env.step(None)


def _over(env: Any, agent: str) -> bool:
    return bool(env.terminations[agent] or env.truncations[agent])


def _earn(game: _Game, rewards: Mapping[str, float]) -> None:
    for agent, reward in rewards.items():
        game.returns[agent] += float(reward)
