"""Faults found by running CoMLRL 1.4.3, each planted in the written-out formula.

What a fault does to the gradient says how plainly a comparison with the formula would show it; our
own gradient is compared on the same episodes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from orchestry.backends.local.batch import Batch, gather
from orchestry.backends.local.trainer import Trainer
from orchestry.core.errors import LearnError
from orchestry.core.types import Tree
from tests.backends.local.gradients.formula import (
    BASELINES,
    Move,
    Plain,
    normalised,
    with_padding,
    without_end,
    written_out,
)
from tests.backends.local.gradients.world import (
    as_if_trained,
    crew_of,
    new_trainer,
    played,
    problem,
    saved_model,
)

Gradient = list[torch.Tensor]
DISCOUNT = 0.5


def learned(trainer: Trainer, batch: Batch) -> Gradient:
    """What `Trainer.learn` adds up in every adapter's A and B before it clips."""
    weights = crew_of(trainer).adapters.parameters()
    found = {id(weight): torch.zeros_like(weight) for weight in weights}

    def keep(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        found[id(weight)] = weight.grad.clone()

    untyped: Any = torch.Tensor.register_post_accumulate_grad_hook
    handles = [untyped(weight, keep) for weight in weights]
    try:
        trainer.learn(batch)
    finally:
        for handle in handles:
            handle.remove()
    return [found[id(weight)] for weight in weights]


def worst(found: Gradient, right: Gradient) -> float:
    """The largest relative difference of a tensor: |found - right| / |right|, Euclidean norms."""
    pairs = zip(found, right, strict=True)
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


def apart(found: Gradient, right: Gradient) -> float:
    """The same of all tensors as one."""
    one, other = (torch.cat([tensor.flatten() for tensor in each]) for each in (found, right))
    return float((one - other).norm() / other.norm())


@dataclass(frozen=True, slots=True)
class Case:
    """Two episodes of two agents and two turns, and who computes their gradients."""

    trainer: Trainer
    plain: Plain
    trees: Sequence[Tree[Any]]

    def right(self, discount: float) -> Gradient:
        return self.plain.gradient(self.trainer, written_out(self.trees, discount=discount))

    def of(self, moves: Sequence[Move], **options: float) -> Gradient:
        return self.plain.gradient(self.trainer, moves, **options)


@dataclass(frozen=True, slots=True)
class Fault:
    """What another trainer does, and the gradient that comes of it."""

    clause: str
    gradient: Callable[[Case], Gradient]
    discount: float = 1.0
    """That the user asked for."""


FAULTS = (
    Fault(
        "the end token is drawn and never trained",
        lambda case: case.of(without_end(written_out(case.trees))),
    ),
    Fault(
        "shorter answers are padded, and the padding is trained",
        lambda case: case.of(with_padding(written_out(case.trees))),
    ),
    Fault(
        "advantages are centred and divided by their standard deviation, whatever the baseline",
        lambda case: case.of(written_out(case.trees, advantages=normalised("mean"))),
    ),
    Fault(
        f"a discount of {DISCOUNT:g} is asked for and ignored",
        lambda case: case.of(written_out(case.trees)),
        DISCOUNT,
    ),
    Fault(
        "episodes of two turns stop after the first",
        lambda case: case.of(written_out(case.trees, turns=1)),
    ),
    Fault(
        "drawn at the temperature, trained at 1",
        lambda case: case.of(written_out(case.trees), temperature=1.0),
    ),
    Fault(
        "the loss of a group is NaN: a constant takes its place, and the step is made",
        lambda case: case.of([m for m in written_out(case.trees) if m.group != (0, 0, 0)]),
    ),
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault's relative differences from the right gradient, a seed each, and ours."""

    clause: str
    faulty: tuple[float, ...]
    ours: float


@dataclass(frozen=True, slots=True)
class Apart:
    """What the figures of gradients leave out, over all seeds."""

    normalised: float
    """Largest difference between the advantages of four algorithms that normalise."""
    baselines: float
    """Least relative difference between our gradients with two baselines."""
    tokens: tuple[int, int]
    """Through the model with groups of no variance left out, and kept."""
    skipping: float
    """Largest relative difference that leaving them out makes to the gradient."""
    stopped: int
    """Seeds whose NaN was refused with every weight as it was."""


def planted(seeds: int) -> tuple[list[Planted], Apart]:
    """All faults, and the rest."""
    cases = [asyncio.run(_case(seed)) for seed in range(seeds)]
    asked = sorted({fault.discount for fault in FAULTS})
    right = [{discount: case.right(discount) for discount in asked} for case in cases]
    ours = {
        discount: max(
            worst(learned(case.trainer, gather(case.trees, discount=discount)), own[discount])
            for case, own in zip(cases, right, strict=True)
        )
        for discount in asked
    }
    found = [
        Planted(
            fault.clause,
            tuple(
                apart(fault.gradient(case), own[fault.discount])
                for case, own in zip(cases, right, strict=True)
            ),
            ours[fault.discount],
        )
        for fault in FAULTS
    ]
    return found, _rest(cases)


async def _case(seed: int) -> Case:
    with saved_model(seed) as folder:
        made = new_trainer(folder, 2, seed, learning_rate=0.0)
        trainer, plain = as_if_trained(made, seed), Plain(folder)
    problems = [problem(2 * seed + i, agents=2, turns=2) for i in range(2)]
    return Case(trainer, plain, await played(trainer, problems, seed))


def _rest(cases: Sequence[Case]) -> Apart:
    flats = [asyncio.run(_flat(seed, case.trainer)) for seed, case in enumerate(cases)]
    return Apart(
        normalised=max(_between_algorithms(case) for case in cases),
        baselines=min(_between_baselines(case) for case in cases),
        tokens=(sum(flat[0] for flat in flats), sum(flat[1] for flat in flats)),
        skipping=max(flat[2] for flat in flats),
        stopped=sum(_stops_at_nan(case) for case in cases),
    )


def _between_algorithms(case: Case) -> float:
    """The largest difference of an answer's weight between any two, relative to the largest."""
    weights = [
        [move.weight for move in written_out(case.trees, advantages=normalised(baseline))]
        for baseline in BASELINES
    ]
    spread = max(max(each) - min(each) for each in zip(*weights, strict=True))
    return float(spread / max(map(abs, weights[0])))


def _between_baselines(case: Case) -> float:
    mean, others = (
        learned(case.trainer, gather(case.trees, baseline=baseline))
        for baseline in ("mean", "leave_one_out")
    )
    return apart(others, mean)


async def _flat(seed: int, trainer: Trainer) -> tuple[int, int, float]:
    """Of four episodes two score always the same: tokens without and with them, the difference."""
    kinds = ("random", "flat", "random", "flat")
    problems = [problem(4 * seed + i, agents=2, turns=2, score=s) for i, s in enumerate(kinds)]
    trees = await played(trainer, problems, seed)
    (less, one), (more, other) = (
        _counted(trainer, gather(trees, skip=skip)) for skip in (True, False)
    )
    return less, more, apart(one, other)


def _counted(trainer: Trainer, batch: Batch) -> tuple[int, Gradient]:
    """Tokens that went through the model, padding included, and the gradient."""
    seen = list[int]()
    embeddings: Any = crew_of(trainer).base.model.get_input_embeddings()
    handle = embeddings.register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0].numel())
    )
    try:
        gradient = learned(trainer, batch)
    finally:
        handle.remove()
    return sum(seen), gradient


def _stops_at_nan(case: Case) -> bool:
    """Whether an advantage that is NaN is refused, and no weight moves, at a rate of 1."""
    batch, weights = gather(case.trees), crew_of(case.trainer).adapters.parameters()
    broken = replace(batch.samples[-1], advantage=math.nan)
    before = [weight.detach().clone() for weight in weights]
    rate, case.trainer.optimizer.rate = case.trainer.optimizer.rate, 1.0
    try:
        case.trainer.learn(Batch((*batch.samples[:-1], broken), batch.actions))
    except LearnError:
        return all(map(torch.equal, before, weights))
    finally:
        case.trainer.optimizer.rate = rate
    return False
