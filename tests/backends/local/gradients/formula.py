"""Equations 1 and 2 of MAGRPO (arXiv 2508.04652) written out, and the faults of other trainers.

Nothing of `orchestry.backends.local` is used: returns and advantages are read off the chains, an
agent's adapter is multiplied into the weights of a model that transformers loads, and every sample
is one plain forward pass, alone and whole, with a log_softmax over all its logits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from orchestry.backends.local.sizes import ATTENTION
from orchestry.backends.local.trainer import Trainer
from orchestry.core.types import NodeId, Tree
from tests.backends.local.gradients.world import (
    END_ID,
    PAD_ID,
    ROLES,
    TEMPERATURE,
    crew_of,
    to_float64,
)

Weights = dict[str, torch.Tensor]
"""Of the layers that adapters act on, by name."""


@dataclass(frozen=True, slots=True)
class Move:
    """One agent's answer in one turn of one chain, and what its log-probability is weighed with."""

    agent: int
    turn: int
    episode: int
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    weight: float
    """A / n of equation 2, over the number of joint actions that the answer is part of."""

    @property
    def group(self) -> tuple[int, int, int]:
        return self.agent, self.episode, self.turn


def centred(returns_J: Sequence[float]) -> list[float]:
    """Equation 1."""
    return [value - fmean(returns_J) for value in returns_J]


def written_out(
    trees: Sequence[Tree[Any]],
    cross: int | None = None,
    discount: float = 1.0,
    turns: int | None = None,
    advantages: Callable[[Sequence[float]], Sequence[float]] = centred,
) -> list[Move]:
    """Every agent's every answer, once a chain that it is part of.

    Args:
        cross: the group's size where all answers of the first turn were combined.
        turns: only the first of them, as if the episode ended there.
    """
    found, answers = list[Move](), 0.0
    for episode, tree in enumerate(trees):
        chains = [_chain(tree, leaf.id)[:turns] for leaf in tree.leaves]
        agents = len(tree.groups[0].agents)
        for turn in range(len(chains[0])):
            part_of = cross ** (agents - 1) if cross and turn == 0 else 1
            answers += len(chains) / part_of  # of each agent
            returns_J = [
                sum(discount**later * node.score.total for later, node in enumerate(chain[turn:]))
                for chain in chains
            ]
            for chain, advantage in zip(chains, advantages(returns_J), strict=True):
                for said in chain[turn].turns[-agents:]:
                    tokens, agent = said.completion.tokens, ROLES.index(said.agent)
                    prompt, ids = tokens.prompt_ids, tokens.ids
                    found.append(Move(agent, turn, episode, prompt, ids, advantage / part_of))
    return [replace(move, weight=move.weight / answers) for move in found]


def _chain(tree: Tree[Any], leaf: NodeId) -> list[Any]:
    """The states after each turn."""
    return [tree.nodes[id].trajectory for id in leaf.path[1:]]


class Plain:
    """A model as transformers loads it, in float64."""

    def __init__(self, folder: Path) -> None:
        load: Any = AutoModelForCausalLM
        self._model = to_float64(load.from_pretrained(folder)).eval().requires_grad_(False)
        self._targets = {
            name: weight
            for name, weight in self._model.named_parameters()
            if name.split(".")[-2] in ATTENTION and name.endswith("weight")
        }

    def gradient(
        self, trainer: Trainer, moves: Sequence[Move], temperature: float = TEMPERATURE
    ) -> list[torch.Tensor]:
        """Of minus equation 2's objective, by autograd, in every adapter's A and B."""
        objective = torch.zeros((), dtype=torch.float64)
        for move, logprob in zip(moves, self.logprobs(trainer, moves, temperature), strict=True):
            objective = objective + move.weight * logprob
        leaves = crew_of(trainer).adapters.parameters()
        return list(torch.autograd.grad(-objective, leaves, materialize_grads=True))

    def logprobs(
        self, trainer: Trainer, moves: Sequence[Move], temperature: float = TEMPERATURE
    ) -> list[torch.Tensor]:
        """Of each answer, with a gradient in every adapter's A and B."""
        adapters = crew_of(trainer).adapters
        weights = [
            self._weights(adapters.parameters(agent), adapters.scaling)
            for agent in range(len(adapters.agents))
        ]
        return [self._logprobs(weights[m.agent], m, temperature).sum() for m in moves]

    def _weights(self, mine: Sequence[torch.Tensor], scaling: float) -> Weights:
        """W + scaling B A in place of every target's W."""
        return {
            name: self._targets[name] + scaling * up @ down
            for name, down, up in zip(self._targets, mine[::2], mine[1::2], strict=True)
        }

    def _logprobs(self, weights: Weights, move: Move, temperature: float) -> torch.Tensor:
        """(T,): of the answer's tokens."""
        ids = torch.tensor([move.prompt_ids + move.ids])
        logits = functional_call(self._model, weights, (ids,)).logits[0]
        logprobs = (logits[len(move.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
        drawn: torch.Tensor = logprobs.gather(-1, torch.tensor(move.ids)[:, None]).squeeze(-1)
        return drawn


# --- the faults ---------------------------------------------------------------------------------


def without_end(moves: Sequence[Move]) -> list[Move]:
    """The end token is drawn and never trained."""
    cut = [
        replace(move, ids=move.ids[:-1] if move.ids[-1] == END_ID else move.ids) for move in moves
    ]
    return [move for move in cut if move.ids]


def with_padding(moves: Sequence[Move]) -> list[Move]:
    """Every answer is padded to the longest of its group, and the padding trained."""
    longest: defaultdict[tuple[int, int, int], int] = defaultdict(int)
    for move in moves:
        longest[move.group] = max(longest[move.group], len(move.ids))
    pads = [(PAD_ID,) * (longest[move.group] - len(move.ids)) for move in moves]
    return [replace(move, ids=move.ids + pad) for move, pad in zip(moves, pads, strict=True)]


BASELINES: dict[str, Callable[[Sequence[float]], Sequence[float]]] = {
    "none": list,
    "mean": centred,
    # minus the mean of the others
    "leave one out": lambda r: [(value - fmean(r)) * len(r) / (len(r) - 1) for value in r],
    "largest": lambda r: [value - max(r) for value in r],
}
"""Of REINFORCE, MAGRPO, RLOO and ReMax."""


def normalised(baseline: str) -> Callable[[Sequence[float]], Sequence[float]]:
    """Advantages over any baseline, then centred and divided by their standard deviation."""

    def advantages(returns_J: Sequence[float]) -> Sequence[float]:
        raw = BASELINES[baseline](returns_J)
        deviation = pstdev(raw) + 1e-8
        return [value / deviation for value in centred(raw)]

    return advantages
