"""Bucket Brigade: agents on a ring of houses put out fires, rest, signal, and may lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from orchestry import AgentSpec, BaseTask, Frozen, Problem, Score, Split, Tools, errors, vector

from . import game, text
from .experts import EXPERTS
from .options import Options
from .scenario import Scenario

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZES: Mapping[Split, int] = {"train": 64, "dev": 24, "test": 64}
"""Games per split."""
UNREAD, CUT_OFF = "unread answer", "cut off"


@dataclass(frozen=True, slots=True)
class Game:
    """A game so far."""

    problem: Problem
    luck: str
    """What the random numbers of all its nights come from."""
    ring: game.Ring
    rewards: tuple[tuple[float, ...], ...] = ()
    """Per night, of each agent."""
    announcing: bool = False
    """Whether the first phase of a night is on, where there are two."""
    unread: int = 0
    """Answers that named no action; their agents rested at home."""


class BucketBrigade(BaseTask[Game]):
    """A Dec-POMDP of many nights: all act at once, each gets its own reward, the team its mean.

    The same luck, by problem and seed, for all siblings: they differ by what agents do.
    """

    name = "bucket_brigade"
    agents = tuple(text.spec(Scenario(), agent) for agent in range(4))
    weights: ClassVar[Mapping[str, float]] = {"team": 1.0}
    options_type: ClassVar[type[Frozen]] = Options
    judged = False
    options: Options

    @cached_property
    def scenario(self) -> Scenario:
        """What is played."""
        return self.options.played()

    def asked_agents(self) -> tuple[AgentSpec, ...]:
        seats = range(self.scenario.num_agents)
        return tuple(text.spec(self.scenario, agent) for agent in seats)

    def problems(self, split: Split) -> Sequence[Problem]:
        name = self.options.scenario
        said = self.scenario.about or name
        return [
            Problem(id=f"{name}-{split}-{number}", prompt=said, split=split)
            for number in range(SIZES[split])
        ]

    def reset(self, problem: Problem, seed: int) -> Game:
        luck = f"{problem.id}:{seed}"
        first = game.draws(luck, -1, self.scenario.num_houses)
        return Game(problem, luck, game.begin(self.scenario, first), announcing=self._two_phases)

    def to_act(self, state: Game) -> tuple[str, ...]:
        if state.ring.done or state.ring.night >= self.options.max_nights:
            return ()
        return tuple(text.role(agent) for agent in range(self.scenario.num_agents))

    def observe(self, state: Game, agent: str) -> str:
        number = [spec.role for spec in self.agents].index(agent)
        return text.observation(self.scenario, state.ring, number, state.announcing)

    def step(self, state: Game, actions: Mapping[str, str]) -> Game:
        answers = [actions[text.role(agent)] for agent in range(self.scenario.num_agents)]
        if state.announcing:
            said = [text.announced(answer) for answer in answers]
            ring = replace(state.ring, promised=tuple(mode or game.REST for mode in said))
            return replace(
                state, ring=ring, announcing=False, unread=state.unread + said.count(None)
            )
        read = [text.action(answer, self.scenario) for answer in answers]
        homes = self.scenario.homes
        acts = [act or game.Action(home) for act, home in zip(read, homes, strict=True)]
        return self.play(replace(state, unread=state.unread + read.count(None)), acts)

    def play(self, state: Game, acts: Sequence[game.Action]) -> Game:
        """The state after a night of these actions."""
        luck = game.draws(state.luck, state.ring.night, self.scenario.num_houses)
        ring, rewards = game.play(self.scenario, state.ring, acts, luck)
        paid = (*state.rewards, rewards)
        return replace(state, ring=ring, rewards=paid, announcing=self._two_phases)

    def single(self) -> AgentSpec:
        raise errors.ConfigError(
            f"baseline single: the houses of {self.name} belong to several players, so no one can "
            "play a game alone: play baseline fixed, where one model writes every player's move"
        )

    async def evaluate(self, state: Game, tools: Tools) -> Score:
        """The team's mean reward per night so far, mapped to [0, 1] by the scenario's bounds.

        Per night, since a team that lets fires burn may make the game last, and is paid each night.
        """
        low, high = self.scenario.bounds
        returns = self.returns(state)
        nightly = fmean(returns) / max(1, len(state.rewards))
        share = min(1.0, max(0.0, (nightly - low) / (high - low)))
        ruined = state.ring.houses.count(game.RUINED)
        tags = [UNREAD] * (state.unread > 0) + [CUT_OFF] * self._cut_off(state)
        score = self.score(
            feedback=f"{ruined} of {len(state.ring.houses)} houses are ruined. Returns: "
            + ", ".join(f"{text.role(n)} {value:.1f}" for n, value in enumerate(returns))
            + ".",
            tags=tuple(tags),
            team=share,
        )
        return score.model_copy(update={"returns": returns})

    def returns(self, state: Game) -> tuple[float, ...]:
        """Each agent's rewards so far, added up."""
        nights = zip(*state.rewards, strict=True) if state.rewards else [()] * len(self.agents)
        return tuple(sum(agent) for agent in nights)

    def vectors(self, games: int, seed: int) -> vector.Vectors:
        """So many games as arrays (extra `ppo`), for backend ppo."""
        from .vectors import Games

        return Games(self.scenario, self.options.max_nights, games, seed)

    def script(self, name: str, seats: tuple[int, ...], games: int, seed: int) -> vector.Script:
        """A scripted agent in these seats."""
        from .players import Scripted

        if name not in EXPERTS:
            raise errors.ConfigError(errors.unknown("scripted agent", name, [*EXPERTS]))
        return Scripted(self.scenario, name, seats, games, seed)

    def seen(self, state: Game) -> NDArray[np.float32]:
        """See `vector.VectorTask`."""
        import numpy as np

        from .arrays import observation

        agents = range(self.scenario.num_agents)
        return np.array(
            [observation(self.scenario, state.ring, agent, state.announcing) for agent in agents]
        )

    def said(self, state: Game, action: NDArray[np.int8]) -> str:
        """See `vector.VectorTask`."""
        return text.answer(game.Action(*map(int, action)), state.announcing)

    def _cut_off(self, state: Game) -> bool:
        return not state.ring.done and state.ring.night >= self.options.max_nights

    @property
    def _two_phases(self) -> bool:
        return self.scenario.commitment_mode == "two_phase"
