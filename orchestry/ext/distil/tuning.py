"""Fine-tunes a team's adapters on given answers, by the policy loss with known advantages.

Supervised: advantage 1, and the mean over the answers' tokens, so that the loss is their
cross-entropy. Preferences (DPO, arXiv 2305.18290): the winner's advantage is w, the loser's -w,
with w = beta * sigmoid(-beta * margin) from a pass without gradient. The prompt's tokens are not
learned.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import torch

from orchestry.backends.local.batch import Batch, History, Sample
from orchestry.backends.local.optimizer import warm_up
from orchestry.backends.local.trainer import Trainer
from orchestry.core.seeds import shuffled


@dataclass(frozen=True, slots=True)
class Target:
    """An answer that an agent is to give to a prompt."""

    agent: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Ends with the end token, unless the answer was cut."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers of an agent to one prompt."""

    better: Target
    worse: Target

    @property
    def agent(self) -> str:
        """Whose they are."""
        return self.better.agent


class Unit(Protocol):
    """What is learned from."""

    @property
    def agent(self) -> str: ...


UnitT = TypeVar("UnitT", bound=Unit)
LearntT = TypeVar("LearntT", bound=Unit, contravariant=True)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over what is learned."""

    number: int
    """0: before the first step."""
    loss: float | None
    """Mean over the steps; the sum of the agents' losses."""
    held_out: Mapping[str, float]
    """By agent: the loss of what is held out, after this epoch. An agent that has stopped has
    none."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a fine-tuning."""

    epochs: tuple[Epoch, ...]
    kept: Mapping[str, int]
    """By agent: the epoch whose weights it keeps; 0: those it began with."""

    def held_out(self, agent: str) -> tuple[float, float] | None:
        """The agent's held-out loss before, and with the kept weights."""
        found = {one.number: one.held_out[agent] for one in self.epochs if agent in one.held_out}
        return (found[0], found[self.kept[agent]]) if found else None


class Method(Protocol[LearntT]):
    """How units are learned: answers, or pairs of a better and a worse one."""

    def learn(self, units: Sequence[LearntT]) -> float:
        """Takes one step; returns the sum of the agents' losses."""
        ...

    def loss(self, units: Sequence[LearntT]) -> float:
        """The mean loss of one agent's units; no weight changes."""
        ...


@dataclass(frozen=True, slots=True)
class Imitation:
    """Supervised fine-tuning; the loss is in nats per token."""

    trainer: Trainer

    def learn(self, units: Sequence[Target]) -> float:
        """See Method."""
        return self.trainer.learn(answers(units)).loss

    def loss(self, units: Sequence[Target]) -> float:
        """See Method."""
        return self.trainer.loss(answers(units))


class Preferences:
    """DPO; the reference is the team as it is when this is made. The loss is log 2 then, and is
    the mean of -log sigmoid(beta * margin). A margin is computed without dropout."""

    def __init__(self, trainer: Trainer, pairs: Sequence[Pair], beta: float) -> None:
        """`pairs`: all that will be learned or measured."""
        self.trainer, self.beta = trainer, beta
        self._reference = dict(zip(pairs, self._gaps(pairs), strict=True))

    def learn(self, units: Sequence[Pair]) -> float:
        """See Method."""
        margins = self.margins(units)
        self.trainer.learn(preferences(units, margins, self.beta))
        agents = {pair.agent for pair in units}
        return sum(
            self._mean([m for pair, m in zip(units, margins, strict=True) if pair.agent == agent])
            for agent in agents
        )

    def loss(self, units: Sequence[Pair]) -> float:
        """See Method."""
        return self._mean(self.margins(units))

    def margins(self, pairs: Sequence[Pair]) -> list[float]:
        """How much likelier each winner is than its loser, less the same of the reference; nats."""
        gaps = self._gaps(pairs)
        return [gap - self._reference[pair] for pair, gap in zip(pairs, gaps, strict=True)]

    def _gaps(self, pairs: Sequence[Pair]) -> list[float]:
        sides = _samples([one for pair in pairs for one in (pair.better, pair.worse)])
        found = self.trainer.logprobs(sides)
        return [better - worse for better, worse in zip(found[::2], found[1::2], strict=True)]

    def _mean(self, margins: Sequence[float]) -> float:
        return sum(_softplus(-self.beta * margin) for margin in margins) / len(margins)


@dataclass(slots=True)
class Tuning(Generic[UnitT]):
    """Takes a trainer's adapters through epochs over `units`, whose agents are the trainer's.

    After each epoch the loss of the `held_out` units is measured. An agent stops at the first
    epoch that does not lower its own, and keeps the weights of its best epoch; agents that share an
    adapter stop together. Without held-out units all epochs count.
    """

    trainer: Trainer
    method: Method[UnitT]
    units: Sequence[UnitT]
    held_out: Sequence[UnitT]
    epochs: int
    batch: int
    """Units of each agent per step, at most."""
    seed: int
    told: Callable[[Epoch], None] = lambda epoch: None
    stepped: Callable[[int, int], None] = lambda done, steps: None
    """Called after each step with the number of steps done, and of all."""
    _best: dict[tuple[str, ...], tuple[float, int, list[torch.Tensor]]] = field(
        default_factory=dict
    )

    def run(self) -> Tuned:
        """Learns; raises LearnError for non-finite numbers."""
        steps = self._steps(self._own(self.units))
        self.trainer.optimizer.warm_up = warm_up(steps * self.epochs)
        going = [team for team in self._teams() if any(self._own(self.units)[a] for a in team)]
        found = [Epoch(0, None, self._measured(going))]
        self.told(found[0])
        self._keep(found[0], going)
        for number in range(1, self.epochs + 1):
            loss = self._epoch(number, going, steps)
            found.append(Epoch(number, loss, self._measured(going)))
            self.told(found[-1])
            going = self._keep(found[-1], going)
            if not going:
                break
        return Tuned(tuple(found), self._restored(len(found) - 1))

    def _own(self, units: Sequence[UnitT]) -> dict[str, list[UnitT]]:
        return {role: [one for one in units if one.agent == role] for role in self._roles()}

    def _roles(self) -> list[str]:
        return [role for crew in self.trainer.crews for role in crew.roles]

    def _teams(self) -> list[tuple[str, ...]]:
        """The agents of each adapter."""
        return [
            team
            for crew in self.trainer.crews
            for team in ([crew.roles] if crew.adapters.shared else [(r,) for r in crew.roles])
        ]

    def _steps(self, own: Mapping[str, Sequence[UnitT]]) -> int:
        """Steps per epoch: as many as the agent with the most units needs."""
        return max(-(-len(mine) // self.batch) for mine in own.values())

    def _epoch(self, number: int, going: Sequence[tuple[str, ...]], steps: int) -> float:
        """All units once, in a new order; an agent with few spreads them over all steps."""
        own, losses = self._own(self.units), list[float]()
        orders = {
            role: shuffled(len(own[role]), self.seed, "epoch", number, role)
            for team in going
            for role in team
        }
        for step in range(steps):
            part = [
                own[role][place]
                for role, order in orders.items()
                for place in order[len(order) * step // steps : len(order) * (step + 1) // steps]
            ]
            if part:
                losses.append(self.method.learn(part))
            self.stepped((number - 1) * steps + step + 1, self.epochs * steps)
        return sum(losses) / len(losses)

    def _measured(self, going: Sequence[tuple[str, ...]]) -> dict[str, float]:
        own = self._own(self.held_out)
        roles = [role for team in going for role in team if own[role]]
        return {role: self.method.loss(own[role]) for role in roles}

    def _keep(self, epoch: Epoch, going: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Keeps weights that are the best so far; returns the agents that go on."""
        left = list[tuple[str, ...]]()
        for team in going:
            known = [epoch.held_out[role] for role in team if role in epoch.held_out]
            loss = sum(known) / len(known) if known else None
            if loss is None:
                left.append(team)
            elif team not in self._best or loss < self._best[team][0]:
                copies = [weight.detach().clone() for weight in self._weights(team)]
                self._best[team] = loss, epoch.number, copies
                left.append(team)
        return left

    def _restored(self, last: int) -> dict[str, int]:
        """Puts the best weights back; returns their epochs."""
        kept = {role: last if mine else 0 for role, mine in self._own(self.units).items()}
        for team, (_, number, copies) in self._best.items():
            kept |= dict.fromkeys(team, number)
            with torch.no_grad():
                for weight, copy in zip(self._weights(team), copies, strict=True):
                    weight.copy_(copy)
        return kept

    def _weights(self, team: Sequence[str]) -> list[torch.nn.Parameter]:
        for crew in self.trainer.crews:
            if team[0] in crew.roles:
                return crew.adapters.parameters(crew.roles.index(team[0]))
        raise KeyError(team[0])


def answers(targets: Sequence[Target]) -> Batch:
    """A batch whose loss is each agent's cross-entropy, its mean per token of its answers."""
    tokens = Counter[str]()
    for one in targets:
        tokens[one.agent] += len(one.ids)
    short_first = sorted(targets, key=lambda one: len(one.prompt_ids) + len(one.ids))
    return Batch(tuple(_samples(short_first)), tokens)


def preferences(pairs: Sequence[Pair], margins: Sequence[float], beta: float) -> Batch:
    """A batch whose loss has, in each agent, the gradient of the mean of -log sigmoid(beta *
    margin) over its pairs."""
    sides, weights = list[Target](), list[float]()
    for pair, margin in zip(pairs, margins, strict=True):
        weight = beta * math.exp(-_softplus(beta * margin))
        sides += [pair.better, pair.worse]
        weights += [weight, -weight]
    samples = (
        replace(sample, advantage=weight)
        for sample, weight in zip(_samples(sides), weights, strict=True)
    )
    return Batch(tuple(samples), Counter(pair.agent for pair in pairs))


def _samples(targets: Sequence[Target]) -> list[Sample]:
    """With advantage 1. Answers to one prompt are a group, so that it is computed once."""
    numbers = dict[History, int]()
    return [
        Sample(
            agent=one.agent,
            prompt_ids=one.prompt_ids,
            ids=one.ids,
            logprobs=(),
            advantage=1.0,
            group=numbers.setdefault((one.agent, one.prompt_ids), len(numbers)),
        )
        for one in targets
    ]


def _softplus(x: float) -> float:
    """log(1 + exp(x)), without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
