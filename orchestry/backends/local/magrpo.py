"""MAGRPO (arXiv 2508.04652): returns, group-relative advantages, and the policy gradient's loss.

The defaults are the paper's. Other variants (division by the standard deviation, a leave-one-out
baseline, the mean over tokens, clipping, a KL term) are options, off by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt
from typing import TYPE_CHECKING, Literal

from orchestry.rollout.tree import advantages as centred

if TYPE_CHECKING:
    from torch import Tensor

Baseline = Literal["mean", "leave_one_out"]
Reduce = Literal["sum", "mean"]
EPSILON = 1e-6
"""Minimum standard deviation to divide by, so that rounding errors are not amplified."""


def returns(rewards_T: Sequence[float], discount: float = 1.0) -> tuple[float, ...]:
    """The return from each turn on: R_t = r_t + discount * R_(t+1); shape (T,) to (T,).

    At discount 1, the paper's, the sum of the rewards from turn t on; at 0 the turn's own.
    """
    found, after = list[float](), 0.0
    for reward in reversed(rewards_T):
        after = reward + discount * after
        found.append(after)
    return tuple(reversed(found))


def gae(
    reward: float, value: float, after: float, ahead: float, discount: float, trace: float
) -> float:
    """The advantage of one stage by generalised advantage estimation (arXiv 1506.02438).

    `value` and `after` estimate the return from the states before and after the stage (0 after the
    last), `ahead` is the advantage of the next stage: A_t = r_t + discount * V_(t+1) - V_t +
    discount * trace * A_(t+1). So `trace` (lambda) 1 gives the return minus the value, and 0 the
    error of one step.
    """
    return reward + discount * after - value + discount * trace * ahead


def action_returns(
    returns_J: Sequence[float],
    agents: int,
) -> tuple[tuple[float, ...], ...]:
    """The return of each agent's actions, if all are combined (`cross`).

    `returns_J` has one return per joint action, J = G**agents, in the order of itertools.product;
    the answer has shape (agents, G). An action's return is the mean over the joint actions it is
    part of, and so is then its advantage: the mean over all J of A_J * sum_i log pi_i(a_i) has, in
    agent i, the gradient of the mean over its own G actions.

    Sums are rounded once, so the order of returns does not matter. Raises ValueError if J is not
    G**agents.
    """
    size = round(len(returns_J) ** (1 / agents))
    if size**agents != len(returns_J):
        raise ValueError(f"{len(returns_J)} joint actions are not all of {agents} agents' actions")
    blocks = [size ** (agents - 1 - agent) for agent in range(agents)]
    return tuple(
        tuple(
            fsum(r for j, r in enumerate(returns_J) if j // block % size == action)
            / (len(returns_J) // size)
            for action in range(size)
        )
        for block in blocks  # joint actions in a row that hold one action of this agent
    )


def group_advantages(
    returns_G: Sequence[float],
    *,
    baseline: Baseline = "mean",
    normalise: bool = False,
) -> tuple[float, ...]:
    """Each return minus its group's baseline; shape (G,) to (G,).

    `mean` is equation 1: A_g = R_g - mean(R). `leave_one_out` takes the mean of the others, which
    is G / (G - 1) times that (RLOO, arXiv 2402.14740). `normalise` divides by the group's standard
    deviation (over G, EPSILON at least), as GRPO does (arXiv 2402.03300) and MAGRPO does not.

    A group without variance, such as a single action, has advantages of exactly 0.0, so its forward
    pass can be skipped.
    """
    size, centred_G = len(returns_G), centred(returns_G)
    if not any(centred_G):
        return centred_G
    scale = size / (size - 1) if baseline == "leave_one_out" else 1.0
    if normalise:
        scale /= max(EPSILON, sqrt(fsum(a * a for a in centred_G) / size))
    return tuple(advantage * scale for advantage in centred_G)


def policy_loss(
    logprobs: Sequence[Tensor],
    advantages_G: Sequence[float],
    *,
    reduce: Reduce = "sum",
    actions: int | None = None,
    clip: float | None = None,
    old_logprobs: Sequence[Tensor] | None = None,
    kl: float = 0.0,
    reference_logprobs: Sequence[Tensor] | None = None,
    weights: Sequence[Tensor] | None = None,
) -> Tensor:
    """Minus the mean over batch and group of A_g * log pi(a_g | h_g): equation 2, to be minimised.

    Args:
        logprobs: one tensor of shape (T_g,) per action, nats, each token of the answer and its EOS,
            at the temperature it was drawn at. No padding: lengths differ.
        advantages_G: one per action, constants.
        reduce: the log-probability of an action is the `sum` over its tokens (the paper). `mean`
            weighs long and short actions alike and is no longer the gradient of the reward.
        actions: what the mean is taken over; without it the actions given. Name it where these are
            a part (a micro-batch, or a batch less its zero advantages): losses of parts then add
            up to the whole's.
        clip: PPO's (arXiv 1707.06347), per token, for a further update from the same actions: the
            lesser of ratio * A and ratio within 1 - clip and 1 + clip, times A; the ratio is to
            `old_logprobs`. At ratio 1 the gradient is the unclipped one.
        kl: weight of the KL to `reference_logprobs` by the k3 estimator, exp(d) - d - 1 with
            d = reference - policy, per token; it needs the actions of zero advantage too.
        weights: multiplies each action's gain before the KL, (T_g,) or (1,) per action: importance
            weights of actions that another policy drew.

    Returns a scalar. Raises ValueError where there are no actions, lengths differ, or an option
    and the log-probabilities that it needs don't come together.
    """
    if not logprobs:
        raise ValueError("no actions: there is nothing to learn from, skip the update")
    olds = _beside(logprobs, old_logprobs, clip is not None, "clip and old_logprobs")
    references = _beside(logprobs, reference_logprobs, kl != 0.0, "kl and reference_logprobs")
    shares: Sequence[Tensor | None] = weights or [None] * len(logprobs)
    gains = list["Tensor"]()
    for new_T, advantage, old_T, reference_T, weight in zip(
        logprobs, advantages_G, olds, references, shares, strict=True
    ):
        gain_T = _gain(new_T, advantage, clip, old_T)
        if weight is not None:
            gain_T = weight * gain_T
        if reference_T is not None:
            gain_T = gain_T - kl * k3(new_T, reference_T)
        gains.append(gain_T.sum() if reduce == "sum" else gain_T.mean())
    return -sum(gains[1:], start=gains[0]) / (actions or len(logprobs))


def _beside(
    logprobs: Sequence[Tensor], given: Sequence[Tensor] | None, wanted: bool, names: str
) -> Sequence[Tensor | None]:
    """Another policy's log-probabilities of the same tokens, or None, per action."""
    if wanted != (given is not None):
        raise ValueError(f"{names} go together: give both or neither")
    if given is None:
        return [None] * len(logprobs)
    for one_T, other_T in zip(logprobs, given, strict=True):
        if one_T.shape != other_T.shape:  # which broadcasting would hide
            raise ValueError(f"{names}: shapes {tuple(one_T.shape)} and {tuple(other_T.shape)}")
    return [one.detach() for one in given]


def _gain(
    new_T: Tensor,
    advantage: float,
    clip: float | None,
    old_T: Tensor | None,
) -> Tensor:
    """The clipped objective per token; shape (T,)."""
    if clip is None or old_T is None:
        return advantage * new_T
    ratio_T = (new_T - old_T).exp()
    clipped_T = ratio_T.clamp(1.0 - clip, 1.0 + clip)
    return (advantage * ratio_T).minimum(advantage * clipped_T)


def k3(new_T: Tensor, reference_T: Tensor) -> Tensor:
    """KL(policy, reference) as each drawn token estimates it; never negative; shape (T,)."""
    difference_T = reference_T - new_T
    return difference_T.expm1() - difference_T
