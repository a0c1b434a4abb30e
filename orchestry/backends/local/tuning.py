"""Fine-tunes a team's adapters on given answers: the policy loss with advantage 1.

Its mean is over the answers' tokens, so that it is the cross-entropy of these tokens. The prompt's
tokens are not learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
class Epoch:
    """One pass over the targets."""

    number: int
    """0: before the first step."""
    loss: float | None
    """Mean over the steps; the sum of the agents' losses."""
    held_out: Mapping[str, float]
    """By agent: mean nats per token of its held-out answers after this epoch. An agent that has
    stopped has none."""


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


@dataclass(slots=True)
class Tuning:
    """Takes a trainer's adapters through epochs over `targets`.

    After each epoch the loss of the `held_out` targets is measured. An agent stops at the first
    epoch that does not lower its own, and keeps the weights of its best epoch; agents that share an
    adapter stop together. Without held-out targets all epochs count.
    """

    trainer: Trainer
    targets: Sequence[Target]
    held_out: Sequence[Target]
    epochs: int
    batch: int
    """Targets of each agent per step, at most."""
    seed: int
    told: Callable[[Epoch], None] = lambda epoch: None
    stepped: Callable[[int, int], None] = lambda done, steps: None
    """Called after each step with the number of steps done, and of all."""
    _best: dict[tuple[str, ...], tuple[float, int, list[torch.Tensor]]] = field(
        default_factory=dict
    )

    def run(self) -> Tuned:
        """Learns; raises LearnError for non-finite numbers."""
        steps = self._steps(self._own(self.targets))
        self.trainer.optimizer.warm_up = warm_up(steps * self.epochs)
        going = [team for team in self._teams() if any(self._own(self.targets)[a] for a in team)]
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

    def _own(self, targets: Sequence[Target]) -> dict[str, list[Target]]:
        return {role: [t for t in targets if t.agent == role] for role in self._roles()}

    def _roles(self) -> list[str]:
        return [role for crew in self.trainer.crews for role in crew.roles]

    def _teams(self) -> list[tuple[str, ...]]:
        """The agents of each adapter."""
        return [
            team
            for crew in self.trainer.crews
            for team in ([crew.roles] if crew.adapters.shared else [(r,) for r in crew.roles])
        ]

    def _steps(self, own: Mapping[str, Sequence[Target]]) -> int:
        """Steps per epoch: as many as the agent with the most targets needs."""
        return max(-(-len(mine) // self.batch) for mine in own.values())

    def _epoch(self, number: int, going: Sequence[tuple[str, ...]], steps: int) -> float:
        """All targets once, in a new order; an agent with few spreads them over all steps."""
        own, losses = self._own(self.targets), list[float]()
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
                losses.append(self.trainer.learn(answers(part)).loss)
            self.stepped((number - 1) * steps + step + 1, self.epochs * steps)
        return sum(losses) / len(losses)

    def _measured(self, going: Sequence[tuple[str, ...]]) -> dict[str, float]:
        own = self._own(self.held_out)
        roles = [role for team in going for role in team if own[role]]
        return {role: self.trainer.loss(answers(own[role])) for role in roles}

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
        kept = {role: last if mine else 0 for role, mine in self._own(self.targets).items()}
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
    """A batch whose loss is each agent's cross-entropy, its mean per token of its answers.

    Targets with one prompt are a group, so that it is computed once.
    """
    numbers, tokens = dict[History, int](), dict[str, int]()
    for one in targets:
        tokens[one.agent] = tokens.get(one.agent, 0) + len(one.ids)
    samples = tuple(
        Sample(
            agent=one.agent,
            prompt_ids=one.prompt_ids,
            ids=one.ids,
            logprobs=(),
            advantage=1.0,
            group=numbers.setdefault((one.agent, one.prompt_ids), len(numbers)),
        )
        for one in sorted(targets, key=lambda one: len(one.prompt_ids) + len(one.ids))
    )
    return Batch(samples, tokens)
