"""Games with a planted answer: small enough that every credit is known by enumeration.

A game is a real task, and its policy a real Policy that draws from known chances.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import prod
from typing import ClassVar

from orchestry import AgentSpec, BaseTask, Problem, Score, Split, Tools
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Member, Request
from orchestry.rollout.shapley import shapley

Actions = tuple[int, ...]
INTERACTION = 0.7
"""Standard deviation of a pair's joint effect, where that of an agent's own is one."""
RIGHT = 0.9
FAULTY = 0.3
"""Chances of doing one's part right."""


@dataclass(frozen=True)
class Game:
    """Who moves, with which chances, and what every sequence of moves scores.

    `chances[i][last]` are those of move i after the action `last` (0 where agents act at once).
    """

    roles: tuple[str, ...]
    """Who makes each move."""
    joint: bool
    chances: tuple[tuple[tuple[float, ...], ...], ...]
    scores: Mapping[Actions, float]
    """By actions so far."""
    _values: dict[Actions, float] = field(default_factory=dict)

    def chance(self, before: Actions) -> tuple[float, ...]:
        """Of every action, after those moves."""
        last = before[-1] if before and not self.joint else 0
        return self.chances[len(before)][last]

    def value(self, before: Actions) -> float:
        """The expected return after those moves."""
        if len(before) == len(self.roles):
            return self.scores[before]
        if before not in self._values:
            chances = enumerate(self.chance(before))
            self._values[before] = sum(p * self.value((*before, a)) for a, p in chances)
        return self._values[before]

    def credit(self, actions: Actions) -> dict[str, float]:
        """The exact credit of every agent."""
        if self.joint:
            game = [self._kept(actions, kept) for kept in range(1 << len(self.roles))]
            return dict(zip(self.roles, shapley(game), strict=True))
        credit = dict.fromkeys(self.roles, 0.0)
        for i, role in enumerate(self.roles):
            credit[role] += self.value(actions[: i + 1]) - self.value(actions[:i])
        return credit

    def _kept(self, actions: Actions, kept: int) -> float:
        """The expected return where the agents of the coalition keep their actions."""
        choices = [
            [(a, 1.0)] if kept >> i & 1 else list(enumerate(self.chances[i][0]))
            for i, a in enumerate(actions)
        ]
        return sum(
            prod(p for _, p in drawn) * self.scores[tuple(a for a, _ in drawn)]
            for drawn in product(*choices)
        )


def interacting(seed: int, joint: bool, actions: int = 3) -> Game:
    """Random effects of agents and of pairs, and random chances that react to the last move.

    Four agents at once, or three that make four moves in order.
    """
    rng = random.Random(derive("interacting", seed, joint))
    roles = ("a", "b", "c", "d") if joint else ("a", "b", "c", "b")
    own = [[rng.gauss(0, 1) for _ in range(actions)] for _ in roles]
    pairs = {
        (i, j, x, y): rng.gauss(0, INTERACTION)
        for j in range(len(roles))
        for i in range(j)
        for x, y in product(range(actions), repeat=2)
    }
    raw = {
        so_far: sum(own[i][a] for i, a in enumerate(so_far))
        + sum(pairs[i, j, so_far[i], so_far[j]] for j in range(moves) for i in range(j))
        for moves in range(len(roles) + 1)
        for so_far in product(range(actions), repeat=moves)
    }
    low, high = min(raw.values()), max(raw.values())
    scores = {so_far: (value - low) / (high - low) for so_far, value in raw.items()}
    chances = tuple(tuple(_chances(rng, actions) for _ in range(actions)) for _ in roles)
    return Game(roles, joint, chances, scores)


def late(seed: int, joint: bool) -> Game:
    """The same game, scored at its end only."""
    game = interacting(seed, joint)
    scores = {done: v if len(done) == len(game.roles) else 0.0 for done, v in game.scores.items()}
    return Game(game.roles, joint, game.chances, scores)


def faulty(agent: int, joint: bool) -> Game:
    """Four agents do their part right or wrong, one of them mostly wrong.

    The score is half the share of parts that are right, and half for all of them.
    """
    roles = ("a", "b", "c", "d")
    scores = {
        so_far: 0.5 * sum(so_far) / 4 + 0.5 * (sum(so_far) == 4)
        for moves in range(5)
        for so_far in product(range(2), repeat=moves)
    }
    rights = [FAULTY if i == agent else RIGHT for i in range(4)]
    return Game(roles, joint, tuple(((1 - p, p),) * 2 for p in rights), scores)


@dataclass(frozen=True)
class Moves:
    """What was done so far."""

    problem: Problem
    actions: Actions = ()


class Play(BaseTask[Moves]):
    """The games as a task; a problem's prompt names its game."""

    name: ClassVar[str] = "play"
    agents: ClassVar[tuple[AgentSpec, ...]] = tuple(AgentSpec(role=role) for role in "abcd")

    def problems(self, split: Split) -> Sequence[Problem]:
        return [problem(f"interacting {seed} {joint}") for seed in range(2) for joint in (0, 1)]

    def reset(self, problem: Problem, seed: int) -> Moves:
        return Moves(problem)

    def to_act(self, state: Moves) -> tuple[str, ...]:
        game, done = named(state.problem.prompt), len(state.actions)
        return game.roles[done:] if game.joint else game.roles[done : done + 1]

    def observe(self, state: Moves, agent: str) -> str:
        return f"{state.problem.prompt}|{' '.join(map(str, state.actions))}"

    def step(self, state: Moves, actions: Mapping[str, str]) -> Moves:
        moves = tuple(int(actions[agent] or 0) for agent in self.to_act(state))
        return Moves(state.problem, state.actions + moves)

    async def evaluate(self, state: Moves, tools: Tools) -> Score:
        return self.score(quality=named(state.problem.prompt).scores[state.actions])


class Chances:
    """The policy: each answer is drawn from its chances by the request's seed."""

    def __init__(self) -> None:
        self.calls = 0

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        self.calls += len(requests) * n
        return [[self._draw(request, j) for j in range(n)] for request in requests]

    def _draw(self, request: Request, index: int) -> Completion:
        name, _, said = request.messages[-1].content.partition("|")
        game, before = named(name), tuple(map(int, said.split()))
        if game.joint:
            before = (0,) * game.roles.index(request.agent)
        chances = game.chance(before)
        rng = random.Random(derive(request.seed, index))
        (action,) = rng.choices(range(len(chances)), chances)
        return Completion(text=str(action), model=request.model)


MAKERS: dict[str, Callable[[int, bool], Game]] = {
    "interacting": interacting,
    "late": late,
    "faulty": faulty,
}
TEAM = {spec.role: Member(spec.role, "", "planted", 16) for spec in Play.agents}


def problem(name: str) -> Problem:
    """The problem of a game: one of MAKERS, its seed or faulty agent, and 1 if all act at once."""
    return Problem(id=name.replace(" ", "-"), prompt=name)


@cache
def named(name: str) -> Game:
    """The game of that name."""
    kind, number, joint = name.split()
    return MAKERS[kind](int(number), bool(int(joint)))


def _chances(rng: random.Random, actions: int) -> tuple[float, ...]:
    weights = [rng.expovariate(1.0) + 0.1 for _ in range(actions)]
    return tuple(weight / sum(weights) for weight in weights)
