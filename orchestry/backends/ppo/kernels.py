"""What a CPU computes row by row in one go: tanh, drawing actions, PPO's gradient by the logits.

As single operations of torch these take most of an update's time, for the memory between them.
Rows R are policies times rows; A is the number of logits, those of each choice side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
ENTROPY, KL, CLIPPED = range(3)
"""Sums that `push` keeps."""


def _compiled(function: F) -> F:
    done: Any = numba.njit(cache=True, error_model="numpy", fastmath={"contract", "arcp", "nsz"})(
        function
    )
    return cast(F, done)


@_compiled
def tanh_(x_RO: Any, bias_O: Any) -> None:
    """tanh(x + bias) in place, float32: a rational approximation within 3e-7 (the coefficients of
    Eigen's `ptanh`), several times as fast as the exact one."""
    for row in range(len(x_RO)):
        for place in range(len(bias_O)):
            v = x_RO[row, place] + bias_O[place]
            v = min(max(v, np.float32(-7.9053111)), np.float32(7.9053111))
            w = v * v
            top = np.float32(-2.76076847742355e-16) * w + np.float32(2.00018790482477e-13)
            top = top * w + np.float32(-8.60467152213735e-11)
            top = top * w + np.float32(5.12229709037114e-08)
            top = top * w + np.float32(1.48572235717979e-05)
            top = top * w + np.float32(6.37261928875436e-04)
            top = top * w + np.float32(4.89352455891786e-03)
            low = np.float32(1.19825839466702e-06) * w + np.float32(1.18534705686654e-04)
            low = low * w + np.float32(2.26843463243900e-03)
            low = low * w + np.float32(4.89352518554385e-03)
            x_RO[row, place] = v * top / low


@_compiled
def draw(logits_RA: Any, sizes_H: Any, uniform_RH: Any, actions_RH: Any, logprobs_R: Any) -> None:
    """Writes the action that each uniform number falls on, and the joint's log-probability; below
    0: the likeliest."""
    weight = np.empty(logits_RA.shape[1], logits_RA.dtype)
    for row in range(len(logits_RA)):
        first, logp = 0, 0.0
        for choice in range(len(sizes_H)):
            last = first + sizes_H[choice]
            top, best = logits_RA[row, first], first
            for place in range(first + 1, last):
                if logits_RA[row, place] > top:
                    top, best = logits_RA[row, place], place
            total = 0.0
            for place in range(first, last):
                weight[place] = math.exp(logits_RA[row, place] - top)
                total += weight[place]
            taken = best
            if uniform_RH[row, choice] >= 0.0:
                left = uniform_RH[row, choice] * total
                taken = last - 1
                for place in range(first, last):
                    left -= weight[place]
                    if left < 0.0:
                        taken = place
                        break
            actions_RH[row, choice] = taken - first
            logp += logits_RA[row, taken] - top - math.log(total)
            first = last
        logprobs_R[row] = logp


@_compiled
def push(
    logits_RA: Any,
    sizes_H: Any,
    actions_RH: Any,
    before_R: Any,
    advantages_R: Any,
    clip: float,
    entropy: float,
    count: float,
    grad_RA: Any,
    sums: Any,
) -> None:
    """Writes the gradient of the clipped surrogate and of the entropy bonus by each logit, of a
    mean over `count` rows; see `loss.gradient`."""
    width = logits_RA.shape[1]
    chance, logp = np.empty(width, logits_RA.dtype), np.empty(width, logits_RA.dtype)
    own = np.empty(len(sizes_H), logits_RA.dtype)
    for row in range(len(logits_RA)):
        first, joint = 0, 0.0
        for choice in range(len(sizes_H)):
            last = first + sizes_H[choice]
            top, total = logits_RA[row, first], 0.0
            for place in range(first + 1, last):
                top = max(top, logits_RA[row, place])
            for place in range(first, last):
                logp[place] = logits_RA[row, place] - top
                chance[place] = math.exp(logp[place])
                total += chance[place]
            shift, spread = math.log(total), 0.0
            for place in range(first, last):
                logp[place] -= shift
                chance[place] /= total
                spread -= chance[place] * logp[place]
            own[choice] = spread
            sums[ENTROPY] += spread
            joint += logp[first + actions_RH[row, choice]]
            first = last
        change = joint - before_R[row]
        ratio, advantage = math.exp(change), advantages_R[row]
        bound = 1.0 + clip if advantage >= 0.0 else 1.0 - clip
        free = (ratio - bound) * advantage <= 0.0
        sums[KL] += ratio - 1.0 - change
        sums[CLIPPED] += not free
        pushed = -ratio * advantage / count if free else 0.0
        first = 0
        for choice in range(len(sizes_H)):
            last = first + sizes_H[choice]
            for place in range(first, last):
                bonus = (logp[place] + own[choice]) * entropy / count
                grad_RA[row, place] = chance[place] * (bonus - pushed)
            grad_RA[row, first + actions_RH[row, choice]] += pushed
            first = last
