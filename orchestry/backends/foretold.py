"""How often the updates of a run would ask: the learner's walk, with gains drawn at random.

It takes the learner's own course (behaviors/learner.py), with its front and its test. What it can't
know is drawn: how many candidates come of a distillation, and what they gain in an episode.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from orchestry.backends.api.learner import BATCH, DOUBT
from orchestry.backends.api.library import Library
from orchestry.backends.api.trial import best, front, level, retire, rule
from orchestry.core.config import BehaviorsConfig
from orchestry.core.types import Group
from orchestry.models.prior import MOST_LIFT

NO_GAINS: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Chain:
    """An episode without search: who acts, stage by stage."""

    stages: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Chain:
        """The chain whose tree has these groups."""
        return cls(tuple(group.agents for group in groups))

    @property
    def calls(self) -> int:
        return sum(len(stage) for stage in self.stages)

    def own(self, agent: str) -> int:
        """Calls that it doesn't share with one in which the agent's prompt is another: the agent's
        own in the stage where it first acts, and all after that stage.
        """
        shared = 0
        for stage in self.stages:
            if agent in stage:
                return self.calls - shared - (len(stage) - 1)
            shared += len(stage)
        return 0


@dataclass(slots=True)
class _Candidate:
    agent: str
    lift: float
    """Gain in the mean of those episodes in which it changes anything."""
    gains: dict[str, float] = field(default_factory=dict)
    """Mean gain by dev problem; empty before it is screened."""


@dataclass(slots=True)
class _Trial:
    candidate: _Candidate
    pairs: int
    """How many decide it."""
    kept: bool
    """Whether the candidate stands in the prompt then."""
    played: int = 0


class Walk:
    """Updates, one after another. `calls` were made on dev, `distilled` times was distilled."""

    def __init__(
        self,
        config: BehaviorsConfig,
        rng: random.Random,
        chain: Chain,
        dev: Sequence[str],
        library: Library,
        examples: float,
    ) -> None:
        """`dev` names the problems; `examples` is the share of distillations with an example."""
        self.calls = self.distilled = 0
        self._config, self._rng, self._chain, self._dev = config, rng, chain, dev
        self._examples, self._left = examples, 0.0
        self._alike, self._rejections = rng.random(), 0
        self._candidates = dict[str, _Candidate]()
        self._accepted = list[_Candidate]()
        for behavior in library.behaviors:
            found = self._candidate(behavior.agent, behavior.screened)
            if behavior.status == "candidate":
                self._candidates[behavior.id] = found
            elif behavior.status == "accepted":
                self._accepted.append(found)
        self._trial: _Trial | None = None

    def update(self, allowance: float, counts: Mapping[str, int]) -> None:
        """One update that may spend so many calls on dev; `counts` is how many behaviours are
        asked for, by agent to blame.
        """
        self._left = allowance
        if self._trial is None:
            self._propose(counts)
            self._race()
            self._trial = self._begin()
        if self._trial is not None:
            self._go_on(self._trial)

    def _propose(self, counts: Mapping[str, int]) -> None:
        for agent, count in counts.items():
            self.distilled += 1
            made = self._rng.randint(1, count) + (self._rng.random() < self._examples)
            for number in range(made):
                self._candidates[f"{self.distilled}.{number}"] = self._candidate(agent)

    def _race(self) -> None:
        self._screen([id for id, own in self._candidates.items() if not own.gains])
        gains = self._gains()
        kept = front(gains)
        self._candidates = {id: self._candidates[id] for id in kept}
        ranked = sorted(kept, key=lambda id: (-fmean(gains[id].values()), id))
        if len(kept) > 1 and self._left > 0:
            self._screen(ranked[: self._config.candidates])

    def _screen(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        arms = [self._chain.own(self._candidates[id].agent) for id in ids]
        self._pay(self._config.screen * (self._chain.calls + sum(arms)))
        problems = self._rng.choices(self._dev, k=self._config.screen)
        for id in ids:
            own = self._candidates[id]
            found = {problem: [gain] for problem, gain in own.gains.items()}
            for problem in problems:
                found.setdefault(problem, []).append(self._gain(own))
            own.gains = {problem: fmean(gains) for problem, gains in found.items()}

    def _begin(self) -> _Trial | None:
        gains, most = self._gains(), self._config.pairs
        chosen = best(gains, gains) if gains else None
        if chosen is not None and fmean(gains[chosen].values()) > -DOUBT:
            candidate = self._candidates.pop(chosen)
            granted = level(self._config.alpha, self._rejections + 1)
            ruling = rule(self._pairs(candidate), granted, most)
            self._rejections += ruling.verdict == "reject"
        elif self._accepted:
            candidate = self._accepted.pop(0)
            ruling = retire(self._pairs(candidate), most)
        else:
            return None
        return _Trial(candidate, ruling.pairs, ruling.verdict == "accept")

    def _go_on(self, trial: _Trial) -> None:
        """Plays whole batches, though the trial may be decided within one."""
        each = self._chain.calls + self._chain.own(trial.candidate.agent)
        while trial.played < trial.pairs and self._left > 0:
            batch = min(BATCH, self._config.pairs - trial.played)
            self._pay(batch * each)
            trial.played += batch
        if trial.played < trial.pairs:
            return
        if trial.kept:
            self._accepted.append(trial.candidate)
        self._trial = None

    def _candidate(self, agent: str, gains: Mapping[str, float] = NO_GAINS) -> _Candidate:
        return _Candidate(agent, self._rng.uniform(-MOST_LIFT, MOST_LIFT), dict(gains))

    def _pairs(self, candidate: _Candidate) -> Iterator[float]:
        """What it gains in each pair of a trial."""
        return (self._gain(candidate) for _ in range(self._config.pairs))

    def _gain(self, candidate: _Candidate) -> float:
        """Of one episode: nothing in a share of them that is drawn once a run."""
        if self._rng.random() < self._alike:
            return 0.0
        return max(-1.0, min(1.0, candidate.lift + self._rng.uniform(-1.0, 1.0)))

    def _gains(self) -> dict[str, dict[str, float]]:
        return {id: own.gains for id, own in self._candidates.items()}

    def _pay(self, calls: int) -> None:
        self.calls += calls
        self._left -= calls
